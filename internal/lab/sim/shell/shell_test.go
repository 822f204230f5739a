package shell

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/candidates"
	"github.com/ballast-lb/ballast/internal/algo/history"
	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim"
)

func drawTables(t *rapid.T) [][]uint16 {
	cells := rapid.IntRange(1, 5).Draw(t, "cells")
	return rapid.SliceOfN(rapid.SliceOfN(rapid.Uint16Range(1, 5), cells, cells), 1, 12).Draw(t, "tables")
}

// dumbResets follows one matrix for each depth, and looks for the first server of every cell after every table.
func dumbResets(tables [][]uint16, rows int, push func(m *history.Matrix, owners []uint16)) (resets int) {
	m, lost := history.NewMatrix(tables[0], rows), make([]bool, len(tables[0]))
	for _, owners := range tables[1:] {
		push(m, owners)
		for cell, server := range tables[0] {
			lost[cell] = lost[cell] || !slices.Contains(m.Column(cell), server)
		}
	}
	for _, is := range lost {
		if is {
			resets++
		}
	}
	return resets
}

func TestOnePassageCountsTheResetsOfAllShorterHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tables := drawTables(t)
		const most = 5
		distinct := newPassage(tables[0], most)
		for _, owners := range tables[1:] {
			distinct.update(owners)
		}
		for rows := 1; rows <= most; rows++ {
			if have, want := distinct.resets[rows], dumbResets(tables, rows, (*history.Matrix).Push); have != want {
				t.Errorf("%v with %d rows: have %d, want %d", tables, rows, have, want)
			}
			printed := newPrintedPassage(tables[0], rows)
			for _, owners := range tables[1:] {
				printed.update(owners)
			}
			if have, want := printed.resets[rows], dumbResets(tables, rows, (*history.Matrix).PushAsPrinted); have != want {
				t.Errorf("%v with %d rows as printed: have %d, want %d", tables, rows, have, want)
			}
		}
	})
}

func TestTheFirstServerIsGoneWhenNoRowHasItNow(t *testing.T) {
	p := newPassage([]uint16{1, 1, 1}, 1)
	p.update([]uint16{2, 2, 1})
	p.update([]uint16{1, 3, 1})
	if p.gone != 1 || p.resets[1] != 2 {
		t.Errorf("%d gone and %d reset, want 1 and 2", p.gone, p.resets[1])
	}
}

// When each reconfiguration resets a share p of those that are left, those that see a Poisson number with mean x lose 1 - e^(-px).
func TestLivesAverageOverThePoissonNumberOfReconfigurations(t *testing.T) {
	const p = 0.01
	after := make([]float64, 300)
	for n := range after {
		after[n] = 1 - math.Pow(1-p, float64(n))
	}
	for _, d := range digitised() {
		want := 0.0
		const parts = 100_000
		for i := range parts {
			want += (1 - math.Exp(-p*d.lives.At((float64(i)+0.5)/parts)*perMinute/60)) / parts
		}
		if have := overLives(after, perMinute, d.lives); math.Abs(have-want) > 0.002*want {
			t.Errorf("%s: have %g, want %g", d.name, have, want)
		}
	}
	forever := data.Distribution{Points: []data.Point{{Value: 60, UpTo: 1}}}
	if have, want := overLives(after, 20, forever), 1-math.Exp(-20*p); math.Abs(have-want) > 1e-9 {
		t.Errorf("lives of a minute: have %g, want %g", have, want)
	}
}

func TestServersAreRemovedAndInsertedInTurns(t *testing.T) {
	table := newTables(1, 4451, candidates.Table)
	known := map[uint16]bool{}
	for _, share := range table.shares {
		known[share.ID] = true
	}
	for n := 1; n <= 20; n++ {
		before := slices.Clone(table.shares)
		table.reconfigure()
		if len(table.shares) != servers-n%2 {
			t.Fatalf("%d servers after %d reconfigurations", len(table.shares), n)
		}
		if inserted := table.shares[len(table.shares)-1].ID; n%2 == 0 && known[inserted] {
			t.Errorf("server %d comes back", inserted)
		}
		changed := 0
		for _, share := range before {
			if !slices.Contains(table.shares, share) {
				changed++
			}
		}
		if changed != n%2 {
			t.Errorf("%d servers removed by reconfiguration %d", changed, n)
		}
	}
}

// At best, each reconfiguration moves the cells of one server.
func TestWithoutHistoryNoTableResetsLessThanItMust(t *testing.T) {
	for name, build := range map[string]builder{"Table": candidates.Table, "Columns": candidates.Columns} {
		table := newTables(2, buckets, build)
		p := newPassage(table.owners, 1)
		for range 10 {
			table.reconfigure()
			p.update(table.owners)
		}
		if least := 100 * (1 - math.Pow(1-1.0/servers, 10)); p.percent(1) < 0.98*least || p.percent(1) > 4*least {
			t.Errorf("%s: %.2f %% reset by 10 reconfigurations, at best it is %.2f %%", name, p.percent(1), least)
		}
	}
}

func once(t *testing.T, experiment sim.Experiment, seed uint64) *sim.Outcome {
	t.Helper()
	outcome, err := sim.Once(t.Context(), experiment, seed)
	if err != nil {
		t.Fatal(err)
	}
	return outcome
}

// inBand checks what one run has against bands meant for means: it may be beyond them by a tenth.
func inBand(t *testing.T, experiment sim.Experiment, outcome *sim.Outcome) {
	t.Helper()
	for _, claim := range experiment.Claims {
		value, slack := outcome.Values[claim.ID], 0.1*(claim.Low+claim.High)
		if value < claim.Low-slack || value > claim.High+slack {
			t.Errorf("%s: %s is %.3f, not in [%.3f, %.3f]", experiment.Name, claim.ID, value, claim.Low, claim.High)
		}
	}
}

func TestFigure6IsThatOfThePaper(t *testing.T) {
	experiment := figure6()
	inBand(t, experiment, once(t, experiment, 1))
}

func TestFigure7BeginsWhereThatOfThePaperDoes(t *testing.T) {
	experiment := figure7Of([]uint32{4451, 17791})
	outcome := once(t, experiment, 1)
	inBand(t, experiment, outcome)
	if !reflect.DeepEqual(outcome, once(t, experiment, 1)) {
		t.Error("the same seed gave another outcome")
	}
}

// Two ways to the same number: connections that arrive and end, and cells averaged over what happens in a life.
func TestRealisticRunEqualsTheAverageOverLives(t *testing.T) {
	outcome := once(t, realisticOf(reality{reconfigurations: 90, connections: 300_000}), 3)
	table := newTables(3, buckets, candidates.Table)
	distinct := newPassage(table.owners, 2)
	after := [][]float64{1: {0}, 2: {0}}
	for range 90 {
		table.reconfigure()
		distinct.update(table.owners)
		for rows := 1; rows <= 2; rows++ {
			after[rows] = append(after[rows], 100*float64(distinct.resets[rows])/float64(len(distinct.first)))
		}
	}
	for _, d := range digitised() {
		for rows, id := range []string{1: "h1-" + d.name, 2: "h2-" + d.name} {
			if rows == 0 {
				continue
			}
			want := overLives(after[rows], perMinute, d.lives)
			if have := outcome.Values[id]; math.Abs(have-want) > 0.15*want {
				t.Errorf("%s: %.3f %% of connections, %.3f %% by averages", id, have, want)
			}
		}
	}
}

func TestRateOfReconfigurationsIsTheSameInEveryRun(t *testing.T) {
	for seed := range uint64(5) {
		sum := 0.0
		for _, gap := range poisson(seed, 40) {
			sum += gap
		}
		if math.Abs(sum-40) > 1e-9 {
			t.Errorf("seed %d: 40 reconfigurations in %g mean gaps", seed, sum)
		}
	}
}
