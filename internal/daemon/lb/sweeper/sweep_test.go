package sweeper

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/plan"
)

// fakeTables are tables of so many blocks, sorted by name, that nobody looks into.
func (k *Sweeper) fakeTables(blocks map[string]uint32) (tables []*table) {
	base := uint32(0)
	for _, name := range []string{"a", "b", "c", "d"} {
		if blocks[name] == 0 {
			continue
		}
		place := plan.TablePlace{Base: base, Blocks: blocks[name], IndexBits: 6}
		tables = append(tables, &table{service: name, Table: connections.Table{TablePlace: place}, counts: k.countsOf(name, place),
			rules: connections.SweepRules{Limits: conntable.Limits{Idle: 5 * time.Minute}}})
		base += blocks[name]
	}
	return tables
}

// sweeps remembers how often each block was swept.
type sweeps map[string]int

func (s sweeps) sweep(t *table, from, blocks uint32) (tally connections.Tally) {
	for block := from; block < min(t.Blocks, from+blocks); block++ {
		s[fmt.Sprint(t.service, t.Base+block)]++
		tally[conntable.StateOpen]++
	}
	return tally
}

func TestARoundSweepsEveryBlockOnce(t *testing.T) {
	k := Sweeper{counts: map[string]*counts{}}
	tables := k.fakeTables(map[string]uint32{"a": 40, "b": 1, "d": 16})
	swept, want := sweeps{}, sweeps{}
	for _, table := range tables {
		want.sweep(table, 0, table.Blocks)
	}
	for tables[2].counts.rounds == 0 {
		k.sweep.next(tables, 7, swept.sweep)
	}
	if !maps.Equal(swept, want) {
		t.Errorf("swept %v", swept)
	}
	for _, table := range tables {
		if table.counts.rounds != 1 || table.counts.tally[conntable.StateOpen] != table.Blocks {
			t.Errorf("%s: %+v", table.service, table.counts)
		}
	}
}

func TestTablesMayComeGoAndMoveDuringASweep(t *testing.T) {
	k := Sweeper{counts: map[string]*counts{}}
	before := k.fakeTables(map[string]uint32{"a": 4, "b": 8, "c": 4})
	k.sweep.next(before, 4, sweeps{}.sweep)
	k.sweep.next(before, 4, sweeps{}.sweep) // half of b
	moved := k.fakeTables(map[string]uint32{"b": 8, "c": 4})
	swept := sweeps{}
	k.sweep.next(moved, 8, swept.sweep)
	if len(swept) != 8 || moved[0].counts.tally[conntable.StateOpen] != 8 {
		t.Errorf("a table that was made anew was swept in part: %v", swept)
	}
	k.sweep.next(moved, 2, swept.sweep) // half of c
	k.sweep.next(k.fakeTables(map[string]uint32{"a": 4}), 4, swept.sweep)
	if k.counts["a"].rounds != 2 || len(swept) != 8+2+4 {
		t.Errorf("when c was gone: %v", swept)
	}
}

func TestASweepTakesItsTime(t *testing.T) {
	k := Sweeper{counts: map[string]*counts{}}
	for _, example := range []struct {
		blocks  uint32
		idle    time.Duration
		elapsed time.Duration
		want    uint32
	}{
		{1, time.Hour, sweepPeriod, 1},
		{2000, time.Hour, sweepPeriod, 11},          // a round in 10 s
		{2000, 4 * time.Second, sweepPeriod, 101},   // or in a fourth of the idle timeout
		{2000, time.Millisecond, time.Second, 2000}, // but no block twice at a time
		{1 << 24, time.Hour, time.Second, 1<<24/10 + 1},
	} {
		tables := k.fakeTables(map[string]uint32{"a": example.blocks})
		tables[0].rules.Idle = example.idle
		if got := partOf(tables, example.elapsed); got != example.want {
			t.Errorf("%+v: %d blocks", example, got)
		}
	}
}
