package report

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/ballast-lb/ballast/internal/sim"
)

// Text writes results as tables for a terminal.
func Text(out io.Writer, results []sim.Result) error {
	for _, r := range results {
		fmt.Fprintf(out, "%s: %s\n%s; %s\n", r.Experiment, r.Title, r.Source, seeds(r))
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "  claim\tpaper\tours\tband\tverdict")
		for _, f := range r.Findings {
			fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\n", f.What, paper(f), ours(f), band(f), f.Verdict)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for _, f := range r.Findings {
			if f.Note != "" {
				fmt.Fprintf(out, "  %s: %s\n", f.What, f.Note)
			}
		}
		fmt.Fprintln(out)
	}
	_, err := fmt.Fprintln(out, tally(results))
	return err
}
