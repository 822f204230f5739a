package shell

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/algo/candidates"
	"github.com/ballast-lb/ballast/internal/lab/sim"
)

const (
	maxRows = 5 // h of figure 6
	most    = 100
)

// figure6 is the worst case: connections that never end.
func figure6() sim.Experiment {
	claims := []sim.Claim{
		near("n10-h1", "reset after 10 reconfigurations, h = 1", 6.4),
		near("n10-h2", "reset after 10 reconfigurations, h = 2", 0.75),
		near("n10-h3", "reset after 10 reconfigurations, h = 3", 0.26),
	}
	improved := []float64{31, 6.6, 2.0, 0.94, 0.61} // after 100
	for i, percent := range improved {
		claims = append(claims, near(fmt.Sprintf("n100-h%d", i+1), fmt.Sprintf("reset after 100 reconfigurations, h = %d", i+1), percent))
	}
	for i := range claims {
		claims[i].Paper = "curve of figure 6"
	}
	for i, percent := range improved[:maxRows-1] { // one row is wasted
		claims = append(claims, near(fmt.Sprintf("n100-printed-h%d", i+2), fmt.Sprintf("reset after 100, algorithm 1 as printed, h = %d", i+2), percent))
		if i == 0 {
			claims[len(claims)-1].Note = why
		}
	}
	claims = append(claims, shown("n100-absent-h1", "server is not the owner after 100, h = 1 (it may have been, or not, before)"))
	claims = append(claims, shipped()...)
	return sim.Experiment{
		Name: "shell-6", Source: paper + ", figure 6, top",
		Title: "infinite connections reset by n reconfigurations, for histories of h servers",
		Method: "500 servers, 35591 buckets of 2 candidates (6LB's algorithm 3; Ballast's table fills first choices before second ones). In turns, a random server " +
			"is removed and a new one inserted. One connection per bucket and choice; it is reset when its server is not in the history for the first time.",
		Claims: claims,
		Figures: []sim.Figure{
			{Name: "distinct", Title: "The last h distinct servers", X: "reconfigurations", Y: "connections reset (%)", LogY: true},
			{Name: "printed", Title: "Algorithm 1 as printed", X: "reconfigurations", Y: "connections reset (%)", LogY: true},
			{Name: "columns", Title: "The last h distinct servers, Ballast's table", X: "reconfigurations", Y: "connections reset (%)", LogY: true},
		},
		Run: runFigure6,
	}
}

// shipped are the claims for the table of Ballast, which fills first choices before second ones, beside those for the paper's.
func shipped() (claims []sim.Claim) {
	for i, percent := range []float64{24.7, 5.55, 2, 1.25, 0.86} {
		claim := near(fmt.Sprintf("n100-columns-h%d", i+1), fmt.Sprintf("reset after 100 with Ballast's table, h = %d", i+1), percent)
		claim.Paper = "curve of figure 6"
		if h := i + 1; h != 3 {
			claim.Known = true
			claim.Note = whyColumns
		}
		claims = append(claims, claim)
	}
	return claims
}

// drawn reports whether a figure has a point for so many reconfigurations.
func drawn(n int) bool { return n <= 10 || n%5 == 0 }

func runFigure6(run *sim.Run) {
	table := newTables(run.Seed, buckets, candidates.Table)
	columns := newTables(run.Seed, buckets, candidates.Columns)
	distinct, inColumns := newPassage(table.owners, maxRows), newPassage(columns.owners, maxRows)
	owner := newPassage(table.owners, 1)
	printed := make([]*passage, maxRows+1)
	for h := 2; h <= maxRows; h++ {
		printed[h] = newPrintedPassage(table.owners, h)
	}
	for n := 1; n <= most; n++ {
		table.reconfigure()
		columns.reconfigure()
		distinct.update(table.owners)
		owner.update(table.owners)
		inColumns.update(columns.owners)
		for h := 1; h <= maxRows; h++ {
			if h > 1 {
				printed[h].update(table.owners)
			}
			if !drawn(n) {
				continue
			}
			run.Point(fmt.Sprintf("distinct/h = %d", h), float64(n), distinct.percent(h))
			run.Point(fmt.Sprintf("columns/h = %d", h), float64(n), inColumns.percent(h))
			if h > 1 {
				run.Point(fmt.Sprintf("printed/h = %d", h), float64(n), printed[h].percent(h))
			}
		}
		if n == 10 {
			for h := 1; h <= 3; h++ {
				run.Value(fmt.Sprintf("n10-h%d", h), distinct.percent(h))
			}
		}
		run.Progress(int64(n)*buckets*choices, most*buckets*choices)
	}
	for h := 1; h <= maxRows; h++ {
		run.Value(fmt.Sprintf("n100-h%d", h), distinct.percent(h))
		run.Value(fmt.Sprintf("n100-columns-h%d", h), inColumns.percent(h))
		if h > 1 {
			run.Value(fmt.Sprintf("n100-printed-h%d", h), printed[h].percent(h))
		}
	}
	run.Value("n100-absent-h1", 100*float64(owner.gone)/float64(len(owner.first)))
}
