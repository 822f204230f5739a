// Package sim is `ballast-lab sim`.
package sim

import (
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/all"
)

// Command makes `ballast-lab sim`.
func Command() *cobra.Command {
	cmd := &cobra.Command{Use: "sim", Short: "Check what papers claim, and ask what no test bed can be asked, by simulation"}
	cmd.AddCommand(list(), figures(), run(), reporting(), scenarios(), speeds())
	return cmd
}

func list() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the experiments and what they claim"}
	return command.Reading(cmd, command.NewOutput(cmd.Flags()),
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
	// Fitted: constants were chosen so that it comes out.
	Fitted bool   `json:"fitted,omitempty"`
	Note   string `json:"note,omitempty"`
}

func listed(experiments []sim.Experiment) []listedExperiment {
	list := []listedExperiment{}
	for _, e := range experiments {
		one := listedExperiment{Name: e.Name, Title: e.Title, Source: e.Source, Method: e.Method, Seeds: e.Seeds, Extra: e.Extra}
		if one.Seeds == 0 {
			one.Seeds = sim.DefaultSeeds
		}
		for _, c := range e.Claims {
			one.Claims = append(one.Claims, listedClaim{c.ID, c.What, c.Unit, c.Paper, sim.Band{Low: c.Low, High: c.High}, c.Known, c.Fitted, c.Note})
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
