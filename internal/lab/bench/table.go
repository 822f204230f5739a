package bench

import (
	"context"
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/linux/lb"
)

// MaxTableFlows leaves as many flows again that no table holds yet.
const MaxTableFlows = MaxFlows / 2 * 5 / 4

// MinChangedFlows is the smallest table in which changes are measured: smaller ones have not enough flows for a batch.
const MinChangedFlows = 2 * changesBatch

// MaxTableRepeat is how many flows can be drawn for a sample.
const MaxTableRepeat = wrapper.Listed

// TableResult is what connection tables cost: ours, by an index in the cookie, and the ones that look up the 5-tuple.
type TableResult struct {
	Cells  []Cell   `json:"cells"`
	Ratios []Ratio  `json:"ratios"`
	Memory []Memory `json:"memory"`
}

// Ratio compares the medians of two cells.
type Ratio struct {
	Of      string  `json:"of"`
	OfFlows uint32  `json:"of_flows"`
	To      string  `json:"to"`
	ToFlows uint32  `json:"to_flows"`
	Wrapped float64 `json:"wrapped"`         // of times in the wrapper, as everywhere
	Net     float64 `json:"net"`             // of the programs alone
	Least   float64 `json:"least,omitempty"` // that Wrapped aims at; 0: none
}

// Memory is what the kernel accounts to the maps of a table.
type Memory struct {
	Table string `json:"table"`
	Flows uint32 `json:"flows,omitempty"` // that it was made for; 0: for all
	lb.BenchMemory
}

// RunTable measures connection tables. Tables are filled first: that takes about 2 us and 600 bytes of memory for each flow.
func RunTable(ctx context.Context, options Options) (*TableResult, error) {
	if options.Repeat > MaxTableRepeat {
		return nil, fmt.Errorf("measure %d runs at a time: flows are drawn before: give 1 to %d", options.Repeat, MaxTableRepeat)
	}
	r, err := openTableRig(ctx, options.Flows)
	if err != nil {
		return nil, err
	}
	defer r.close()
	return r.measureAll(ctx, options)
}

func (r *tableRig) measureAll(ctx context.Context, options Options) (*TableResult, error) {
	var all []*measurement
	for _, size := range r.sizes {
		all = append(all, measureSubjects(r.subjects(size), size.flows)...)
	}
	if err := r.run(ctx, all, &options); err != nil {
		return nil, err
	}
	result := &TableResult{Cells: results(all)}
	result.compare(options.Flows)
	var err error
	result.Memory, err = r.memory()
	return result, err
}

// The targets: at this many flows our table is so many times as fast as a hash map.
const (
	targetFlows = 1_000_000
	targetRatio = 2.5
)

func (t *TableResult) compare(flows []uint32) {
	for _, n := range flows {
		for _, peer := range []string{"local-hash", "local-lru"} {
			ratio := t.ratio(peer, n, "table", n)
			if peer == "local-hash" && n == targetFlows {
				ratio.Least = targetRatio
			}
			t.Ratios = append(t.Ratios, ratio)
		}
		t.Ratios = append(t.Ratios, t.ratio("table", n, "cookie", n), t.ratio("table-at-once", n, "table", n))
	}
	changed := slices.DeleteFunc(slices.Clone(flows), func(n uint32) bool { return n < MinChangedFlows })
	if len(changed) == 0 {
		return
	}
	least, most := slices.Min(changed), slices.Max(changed)
	for _, program := range []string{"table-add", "table-end", "hash-add", "hash-end", "lru-add", "lru-end"} {
		t.Ratios = append(t.Ratios, t.ratio(program, most, program, least))
	}
}

func (t *TableResult) ratio(of string, ofFlows uint32, to string, toFlows uint32) Ratio {
	a, _ := Find(t.Cells, of, ofFlows)
	b, _ := Find(t.Cells, to, toFlows)
	return Ratio{Of: of, OfFlows: ofFlows, To: to, ToFlows: toFlows, Wrapped: a.MedianNS / b.MedianNS, Net: a.NetMedianNS / b.NetMedianNS}
}
