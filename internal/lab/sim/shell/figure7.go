package shell

import (
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/candidates"
	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// sizes are numbers of buckets from the least to the most of figure 7; all are prime. shell-6 has the paper's 35591.
var sizes = []uint32{4451, 17791, 71171, 284803}

const rowsOfFigure7 = 3

// figure7 varies the number of buckets.
func figure7() sim.Experiment { return figure7Of(sizes) }

// curves are the ends of the paper's, in percent, by number of buckets.
var curves = map[uint32]float64{4451: 5.3, 284803: 0.66}

func figure7Of(sizes []uint32) sim.Experiment {
	var claims, printed, realistic []sim.Claim
	for _, size := range sizes {
		id, what := fmt.Sprintf("b%d", size), fmt.Sprintf("reset after 100 reconfigurations, %d buckets", size)
		claim := shown(id, what)
		if percent, ok := curves[size]; ok {
			claim = near(id, what, percent)
			claim.Paper = "curve of figure 7"
		}
		claims = append(claims, claim)
		printed = append(printed, shown(id+"-printed", what+", algorithm 1 as printed"))
		what = fmt.Sprintf("reset with realistic durations, %d buckets", size)
		realistic = append(realistic, sim.Claim{ID: id + "-realistic", What: what, Unit: "%", Paper: "less than 1 %", Low: 0, High: 1})
	}
	printed[0].Note = why
	return sim.Experiment{
		Name: "shell-7", Source: paper + ", figure 7",
		Title: "connections reset by n reconfigurations with 4451 to 284803 buckets, h = 3",
		Method: "As shell-6, with h = 3 and other numbers of buckets. Realistic: connections that last as in Roy et al., figure 7a, and 13.5 reconfigurations per " +
			"minute, Poisson.",
		Claims: slices.Concat(claims, printed, realistic),
		Figures: []sim.Figure{
			{Name: "distinct", Title: "The last 3 distinct servers", X: "reconfigurations", Y: "connections reset (%)", LogY: true},
			{Name: "printed", Title: "Algorithm 1 as printed, 3 rows", X: "reconfigurations", Y: "connections reset (%)", LogY: true},
			{Name: "realistic", Title: "Realistic durations, 13.5 reconfigurations/min", X: "buckets", Y: "connections reset (%)", LogX: true, LogY: true},
		},
		Run: func(run *sim.Run) {
			done, total := int64(0), int64(0)
			for _, size := range sizes {
				total += int64(size) * most
			}
			for _, size := range sizes {
				runSize(run, size, done, total)
				done += int64(size) * most
			}
		},
	}
}

// runSize does the part of figure 7 with one number of buckets. done of total were before.
func runSize(run *sim.Run, size uint32, done, total int64) {
	table := newTables(run.Seed, size, candidates.Table)
	distinct, printed := newPassage(table.owners, rowsOfFigure7), newPrintedPassage(table.owners, rowsOfFigure7)
	var after, afterPrinted []float64
	for n := 0; n <= most; n++ {
		if n > 0 {
			table.reconfigure()
			distinct.update(table.owners)
			printed.update(table.owners)
		}
		after, afterPrinted = append(after, distinct.percent(rowsOfFigure7)), append(afterPrinted, printed.percent(rowsOfFigure7))
		if n > 0 && drawn(n) {
			run.Point(fmt.Sprintf("distinct/%d buckets", size), float64(n), after[n])
			run.Point(fmt.Sprintf("printed/%d buckets", size), float64(n), afterPrinted[n])
		}
		run.Progress(done+int64(n)*int64(size), total)
	}
	lives := data.FacebookDurations().Scaled(1e-3)
	realistic := overLives(after, perMinute, lives)
	run.Point("realistic/the last 3 distinct servers", float64(size), realistic)
	run.Point("realistic/as printed, 3 rows", float64(size), overLives(afterPrinted, perMinute, lives))
	id := fmt.Sprintf("b%d", size)
	run.Value(id, after[most])
	run.Value(id+"-printed", afterPrinted[most])
	run.Value(id+"-realistic", realistic)
}
