package shell

import (
	"fmt"
	"math"

	"github.com/ballast-lb/ballast/internal/algo/candidates"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// reality is the size of the realistic experiment.
type reality struct {
	reconfigurations int
	connections      float64 // in all, with the paper's rate of reconfigurations; a quarter of it with others
}

var fullReality = reality{reconfigurations: 160, connections: 6e5}

// rates are reconfigurations per minute.
var rates = []float64{1, 4, perMinute, 40}

const rowsOfReality = 3

func realistic() sim.Experiment { return realisticOf(fullReality) }

func realisticOf(size reality) sim.Experiment {
	var claims []sim.Claim
	for _, d := range digitised() {
		claims = append(claims, d.claims()...)
	}
	var figures []sim.Figure
	for _, d := range digitised() {
		figures = append(figures, sim.Figure{Name: d.name, Title: "The " + d.what, X: "reconfigurations/min", Y: "connections reset (%)", LogX: true, LogY: true})
	}
	return sim.Experiment{
		Name: "shell-6-realistic", Source: paper + ", figure 6, bottom",
		Title:  "connections of real durations reset while servers come and go",
		Method: "As shell-6, with connections that arrive and end, and Poisson reconfigurations, 13.5/min: the median that the paper prints of SilkRoad's figure 2.",
		Claims: claims, Figures: figures,
		Run: func(run *sim.Run) { runRealistic(run, size) },
	}
}

// claims are those of one reading of durations; the paper speaks of its own only.
func (d durations) claims() []sim.Claim {
	claim := func(id, what, paper string, low, high float64) sim.Claim {
		if !d.paper {
			paper = ""
		}
		return sim.Claim{ID: id + "-" + d.name, What: "reset, " + d.what + ", " + what, Unit: "%", Paper: paper, Low: low, High: high}
	}
	printed := claim("printed-h2", "algorithm 1 as printed, h = 2", "less than 1 %", 1, 6.5)
	if d.paper {
		printed.Known, printed.Note = true, why
	}
	columns := claim("columns-h1", "Ballast's table, h = 1", "more than 5 %", 2, 5)
	if d.paper {
		columns.Known, columns.Note = true, whyColumns
	}
	return []sim.Claim{
		claim("h1", "h = 1", "more than 5 %", 3, 6.5),
		claim("h2", "h = 2", "less than 1 %", 0, 1),
		claim("h3", "h = 3", "less than 1 %", 0, 1),
		columns,
		claim("columns-h2", "Ballast's table, h = 2", "less than 1 %", 0, 1),
		claim("columns-h3", "Ballast's table, h = 3", "less than 1 %", 0, 1),
		printed,
		claim("printed-h3", "algorithm 1 as printed, h = 3", "less than 1 %", 0, 1),
	}
}

// stage is a world whose servers change at a rate.
type stage struct {
	durations
	claims    string // what their ids begin with
	perMinute float64
	world     *flows.World
	at        float64 // ns, of the latest reconfiguration
	longest   int64   // ns, life
	warm      bool    // all who lived at the start have ended
}

const second = 1e9 // ns

// stages are worlds with a table, for each reading of durations and each rate.
func (size reality) stages(seed uint64, owners []uint16, rates []float64, claims string) []*stage {
	first := make([]uint32, len(owners))
	for cell, server := range owners {
		first[cell] = uint32(server)
	}
	var all []*stage
	for _, d := range digitised() {
		for _, rate := range rates {
			connections := size.connections
			if rate != perMinute {
				connections /= 4
			}
			world := flows.New(flows.Config{
				Seed: seed, Servers: math.MaxUint16 + 1, Durations: d.lives, Rate: connections / (float64(size.reconfigurations) / rate * 60),
				Table: &flows.Table{Owners: first},
			})
			world.Fill()
			all = append(all, &stage{durations: d, claims: claims, perMinute: rate, world: world, longest: int64(d.lives.At(1)*second) + 1})
		}
	}
	return all
}

// poisson returns the gaps before, between and after so many events of a Poisson process with a mean gap of 1 that happen in as long a time:
// then the rate is as wanted in every run.
func poisson(seed uint64, events int) []float64 {
	stream, gaps, sum := random.New(seed, "update gaps"), make([]float64, events+1), 0.0
	for i := range gaps {
		gaps[i] = stream.Exp(1)
		sum += gaps[i]
	}
	for i := range gaps {
		gaps[i] *= float64(events) / sum
	}
	return gaps
}

// pass lets time pass: gap times the mean time between reconfigurations.
func (s *stage) pass(gap float64) {
	s.at += gap * 60 * second / s.perMinute
	if !s.warm && s.at > float64(s.longest) {
		s.world.RunUntil(s.longest)
		s.world.Reset()
		s.warm = true
	}
	s.world.RunUntil(int64(s.at))
}

// side is a table with its worlds.
type side struct {
	*tables
	stages []*stage
}

// reconfigure has time pass, gap times the mean time between reconfigurations, and changes the servers.
func (s *side) reconfigure(gap float64) {
	before := s.owners
	s.tables.reconfigure()
	for _, one := range s.stages {
		one.pass(gap)
		for cell, server := range s.owners {
			if server != before[cell] {
				one.world.Place(cell, uint32(server))
			}
		}
	}
}

func runRealistic(run *sim.Run, size reality) {
	papers := side{tables: newTables(run.Seed, buckets, candidates.Table)}
	papers.stages = size.stages(run.Seed, papers.owners, rates, "h")
	columns := side{tables: newTables(run.Seed, buckets, candidates.Columns)}
	columns.stages = size.stages(run.Seed, columns.owners, []float64{perMinute}, "columns-h")
	printed := newLegs(papers.owners)
	gaps := poisson(run.Seed, size.reconfigurations)
	for n := 1; n <= size.reconfigurations; n++ {
		papers.reconfigure(gaps[n-1])
		columns.reconfigure(gaps[n-1])
		printed.update(papers.owners)
		run.Progress(int64(size.connections)*int64(n), int64(size.connections)*int64(size.reconfigurations))
	}
	for _, s := range papers.stages {
		s.pass(gaps[size.reconfigurations])
		s.report(run)
		s.reportPrinted(run, printed)
	}
	for _, s := range columns.stages {
		s.pass(gaps[size.reconfigurations])
		s.report(run)
	}
}

// report tells what the world has lost.
func (s *stage) report(run *sim.Run) {
	stats := s.world.Stats()
	for depth := 1; depth <= rowsOfReality; depth++ {
		run.Point(fmt.Sprintf("%s/%s = %d", s.name, s.claims, depth), s.perMinute, 100*float64(stats.BrokenAt(depth))/float64(stats.Ended))
		if s.perMinute == perMinute {
			run.Share(fmt.Sprintf("%s%d-%s", s.claims, depth, s.name), stats.BrokenAt(depth), stats.Ended)
		}
	}
}

// reportPrinted tells what the printed algorithm loses in such a world.
func (s *stage) reportPrinted(run *sim.Run, printed *legs) {
	for h := 2; h <= rowsOfReality; h++ {
		reset := overLives(printed.after(h), s.perMinute, s.lives)
		run.Point(fmt.Sprintf("%s/h = %d as printed", s.name, h), s.perMinute, reset)
		if s.perMinute == perMinute {
			run.Value(fmt.Sprintf("printed-h%d-%s", h, s.name), reset)
		}
	}
}

// legs follow connections with the printed algorithm, half of which begin before a server is removed and half before one is inserted.
type legs struct {
	begun   int
	all     [2][rowsOfReality + 1]*passage
	percent [2][rowsOfReality + 1][]float64 // by reconfigurations since the beginning
}

func newLegs(owners []uint16) *legs {
	l := &legs{}
	l.begin(owners)
	return l
}

func (l *legs) begin(owners []uint16) {
	for h := 2; h <= rowsOfReality; h++ {
		l.all[l.begun][h] = newPrintedPassage(owners, h)
		l.percent[l.begun][h] = []float64{0}
	}
	l.begun++
}

func (l *legs) update(owners []uint16) {
	for i := range l.begun {
		for h := 2; h <= rowsOfReality; h++ {
			l.all[i][h].update(owners)
			l.percent[i][h] = append(l.percent[i][h], l.all[i][h].percent(h))
		}
	}
	if l.begun < len(l.all) {
		l.begin(owners)
	}
}

// after returns the percentage that is reset after n reconfigurations, with h rows.
func (l *legs) after(h int) []float64 {
	mean := make([]float64, len(l.percent[1][h]))
	for n := range mean {
		mean[n] = (l.percent[0][h][n] + l.percent[1][h][n]) / 2
	}
	return mean
}
