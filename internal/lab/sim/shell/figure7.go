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

// curvesOfColumns are Ballast's, in percent.
var curvesOfColumns = map[uint32]float64{4451: 5.35, 17791: 3.07, 71171: 1.42, 284803: 0.583}

func figure7Of(sizes []uint32) sim.Experiment {
	var claims, columns, printed, realistic []sim.Claim
	for _, size := range sizes {
		id, what := fmt.Sprintf("b%d", size), fmt.Sprintf("reset after 100 reconfigurations, %d buckets", size)
		claim := shown(id, what)
		if percent, ok := curves[size]; ok {
			claim = near(id, what, percent)
			claim.Paper = "curve of figure 7"
		}
		claims = append(claims, claim)
		ours := near(id+"-columns", what+", Ballast's table", curvesOfColumns[size])
		ours.Paper = claim.Paper
		columns = append(columns, ours)
		printed = append(printed, shown(id+"-printed", what+", algorithm 1 as printed"))
		what = fmt.Sprintf("reset with realistic durations, %d buckets", size)
		realistic = append(realistic, sim.Claim{ID: id + "-realistic", What: what, Unit: "%", Paper: "less than 1 %", Low: 0, High: 1},
			sim.Claim{ID: id + "-columns-realistic", What: what + ", Ballast's table", Unit: "%", Paper: "less than 1 %", Low: 0, High: 1})
	}
	printed[0].Note = why
	largest := &columns[len(columns)-1]
	largest.Known, largest.Note = largest.Paper != "", whyColumns
	return sim.Experiment{
		Name: "shell-7", Source: paper + ", figure 7",
		Title: "connections reset by n reconfigurations with 4451 to 284803 buckets, h = 3",
		Method: "As shell-6, with h = 3 and other numbers of buckets. Realistic: connections that last as in Roy et al., figure 7a, and 13.5 reconfigurations per " +
			"minute, Poisson.",
		Claims: slices.Concat(claims, columns, printed, realistic),
		Figures: []sim.Figure{
			{Name: "distinct", Title: "The last 3 distinct servers", X: "reconfigurations", Y: "connections reset (%)", LogY: true},
			{Name: "columns", Title: "The last 3 distinct servers, Ballast's table", X: "reconfigurations", Y: "connections reset (%)", LogY: true},
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
	table, columns := newTables(run.Seed, size, candidates.Table), newTables(run.Seed, size, candidates.Columns)
	variants := []struct {
		series, drawn string // of the figure for all n, and of the realistic one
		suffix        string // of claims
		realistic     bool   // is claimed
		of            *tables
		*passage
		after []float64 // percent, by n
	}{
		{"distinct", "the last 3 distinct servers", "", true, table, newPassage(table.owners, rowsOfFigure7), nil},
		{"columns", "the same, Ballast's table", "-columns", true, columns, newPassage(columns.owners, rowsOfFigure7), nil},
		{"printed", "as printed, 3 rows", "-printed", false, table, newPrintedPassage(table.owners, rowsOfFigure7), nil},
	}
	for n := 0; n <= most; n++ {
		if n > 0 {
			table.reconfigure()
			columns.reconfigure()
		}
		for i := range variants {
			v := &variants[i]
			if n > 0 {
				v.update(v.of.owners)
			}
			v.after = append(v.after, v.percent(rowsOfFigure7))
			if n > 0 && drawn(n) {
				run.Point(fmt.Sprintf("%s/%d buckets", v.series, size), float64(n), v.after[n])
			}
		}
		run.Progress(done+int64(n)*int64(size), total)
	}
	for _, v := range variants {
		realistic := overLives(v.after, perMinute, data.FacebookDurations().Scaled(1e-3))
		run.Point("realistic/"+v.drawn, float64(size), realistic)
		run.Value(fmt.Sprintf("b%d%s", size, v.suffix), v.after[most])
		if v.realistic {
			run.Value(fmt.Sprintf("b%d%s-realistic", size, v.suffix), realistic)
		}
	}
}
