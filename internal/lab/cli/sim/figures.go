// ballast-lab sim figures.
package sim

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab"
	"github.com/ballast-lb/ballast/internal/lab/papers"
	"github.com/ballast-lb/ballast/internal/lab/sim/all"
)

func figures() *cobra.Command {
	cmd := &cobra.Command{Use: "figures [PAPER...]", Short: "List every figure and table of the papers: their value, ours, the verdict and the reason"}
	command.Complete(cmd, papers.Names)
	return command.Reading(cmd, command.NewOutput(cmd.Flags()), findFigures, printFigures)
}

func findFigures(_ *cobra.Command, names []string) ([]papers.Line, error) {
	for _, name := range names {
		if !slices.ContainsFunc(papers.Names(), func(known string) bool { return strings.EqualFold(known, name) }) {
			return nil, command.Usage("find the paper %s: there is none of that name: use one of %s", name, strings.Join(papers.Names(), " "))
		}
	}
	lines, err := papers.Lines(all.Experiments(), lab.Scenarios())
	return slices.DeleteFunc(lines, func(line papers.Line) bool {
		return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, line.Paper) })
	}), err
}

func printFigures(table *command.Table, lines []papers.Line) {
	table.Row("paper\tfigure\tshows\tpaper's value\tours\tfrom\tverdict\treason")
	for _, line := range lines {
		table.Row(line.Paper, line.Figure, line.Shows, command.OrDash(line.Value), command.OrDash(line.Ours), command.OrDash(line.From), line.Verdict, line.Reason)
	}
}
