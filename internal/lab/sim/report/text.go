package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// Text writes results as tables for a terminal.
func Text(out io.Writer, results []sim.Result) error {
	for _, r := range results {
		fmt.Fprintf(out, "%s: %s\n%s; %s\n", r.Experiment, r.Title, r.Source, seeds(r))
		if err := writeTable(out, r.Findings); err != nil {
			return err
		}
		for _, n := range notes(r.Findings) {
			fmt.Fprintf(out, "  %s: %s\n", n.Of, n.Text)
		}
		fmt.Fprintln(out)
	}
	_, err := fmt.Fprintln(out, tally(results))
	return err
}

// writeTable writes a line for each finding. Where no paper says anything, there is no column for it.
func writeTable(out io.Writer, findings []sim.Finding) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	published := fromPaper(findings)
	write := func(what, paper, ours, band, verdict string) {
		cells := []string{what, paper, ours, band, verdict}
		if !published {
			cells = slices.Delete(cells, 1, 2)
		}
		fmt.Fprintf(table, "  %s\n", strings.Join(cells, "\t"))
	}
	write("claim", "paper", "ours", "band", "verdict")
	for _, f := range findings {
		write(f.What, paper(f), Ours(f), band(f), string(f.Verdict))
	}
	return table.Flush()
}
