// Package sim is `ballast sim`.
package sim

import (
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/sim"
	"github.com/ballast-lb/ballast/internal/sim/all"
)

// Command makes `ballast sim`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Check what papers claim, and ask what no test bed can be asked, by simulation",
		Long: `The simulator runs the code that builds the tables, weights and protocols of the data plane, at a scale that no test bed has, and
many times with different random seeds. Nothing is sent anywhere, no root is needed. docs/simulator.md tells how it works,
docs/results.md what comes out.

Each experiment claims numbers. For each, what the paper says is shown beside our mean with its 95 % confidence interval and the band
that an honest run lies in:
  PASS                our mean lies in the band
  DOES-NOT-REPRODUCE  it does, and the paper's value is known not to come out of what the paper describes
  FAIL                it does not, nor does any of the confidence interval
  INCONCLUSIVE        it does not, but the interval reaches the band: run more seeds
  SHOWN               there is nothing to judge by

Exit status of run, report and scenario: 1 when a claim fails, else 2 when one is inconclusive, else 0.`,
		Example: `  ballast sim list
  ballast sim run cheetah-2b
  ballast sim scenario my-question.yaml`,
	}
	cmd.AddCommand(list(), run(), reporting(), scenarios(), speeds())
	return cmd
}

func list() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the experiments and what they claim",
		Example: `  ballast sim list
  ballast sim list --json | jq '.[] | select(.name == "shell-6").claims'`,
	}
	return command.Reading(cmd, cmd.Flags().Bool("json", false, "print JSON, with all claims"),
		func(*cobra.Command, []string) ([]listedExperiment, error) { return listed(all.Experiments()), nil }, printExperiments)
}

// listedExperiment is an experiment as `sim list --json` shows it.
type listedExperiment struct {
	Name   string        `json:"name"`
	Title  string        `json:"title"`
	Source string        `json:"source"`
	Method string        `json:"method,omitempty"`
	Seeds  int           `json:"seeds"`
	Extra  bool          `json:"extra"`
	Claims []listedClaim `json:"claims"`
}

type listedClaim struct {
	ID    string   `json:"id"`
	What  string   `json:"what"`
	Unit  string   `json:"unit,omitempty"`
	Paper string   `json:"paper,omitempty"`
	Band  sim.Band `json:"band"`
	Known bool     `json:"known_not_to_reproduce,omitempty"`
	Note  string   `json:"note,omitempty"`
}

func listed(experiments []sim.Experiment) []listedExperiment {
	list := []listedExperiment{}
	for _, e := range experiments {
		one := listedExperiment{Name: e.Name, Title: e.Title, Source: e.Source, Method: e.Method, Seeds: e.Seeds, Extra: e.Extra}
		if one.Seeds == 0 {
			one.Seeds = sim.DefaultSeeds
		}
		for _, c := range e.Claims {
			one.Claims = append(one.Claims, listedClaim{c.ID, c.What, c.Unit, c.Paper, sim.Band{Low: c.Low, High: c.High}, c.Known, c.Note})
		}
		list = append(list, one)
	}
	return list
}

func printExperiments(table *command.Table, experiments []listedExperiment) {
	table.Row("experiment\tclaims\tsource\twhat")
	for _, e := range experiments {
		name := e.Name
		if e.Extra {
			name += " *"
		}
		table.Row(name, len(e.Claims), e.Source, e.Title)
	}
	table.Line("\n* not among `all`")
}
