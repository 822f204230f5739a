// Package fleet has the commands of ctl about the whole fleet: what is in it, and what is to be in it.
package fleet

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/model"
)

// Fleet makes `ballast ctl fleet show`, by itself the same as `ballast ctl fleet show`.
func Fleet(c *ask.Control) *cobra.Command {
	return ask.Lone("fleet", func() *cobra.Command { return showFleet(c) })
}

func showFleet(c *ask.Control) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Print the whole fleet, without keys, as a file for apply",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Tabular() {
				return command.Usage("a fleet is no table: use -o yaml, which is the default, or -o json")
			}
			wanted, err := wantedFleet(c, cmd)
			if err != nil {
				return err
			}
			if c.AsJSON() {
				return command.WriteJSON(cmd.OutOrStdout(), wanted)
			}
			text, err := config.Marshal(wanted)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}

// wantedFleet is what the fleet is to be.
func wantedFleet(c *ask.Control, cmd *cobra.Command) (model.Fleet, error) {
	answer, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.GetFleet, &ballastv1.GetFleetRequest{})
	if err != nil {
		return model.Fleet{}, err
	}
	return api.FleetFromProto(answer, nil)
}

// historyRow is one change, as --json prints it.
type historyRow struct {
	Time    time.Time `json:"time"`
	Name    string    `json:"name"`
	Role    string    `json:"role"`
	Address string    `json:"address,omitempty"`
	Changes []string  `json:"changes"`
}

// History makes `ballast ctl history list`, by itself the same as `ballast ctl history list`.
func History(c *ask.Control) *cobra.Command {
	return ask.Lone("history", func() *cobra.Command { return listHistory(c) })
}

func listHistory(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{
		Use: "list", Short: "List the last changes of the fleet and who made them",
	}, c.Output, func(cmd *cobra.Command, _ []string) ([]historyRow, error) {
		answer, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.ListChanges, &ballastv1.ListChangesRequest{})
		rows := []historyRow{}
		for _, change := range answer.GetChanges() {
			rows = append(rows, historyRow{change.Time.AsTime(), change.Name, change.Role, change.Address, command.NonNil(change.Changes)})
		}
		return rows, err
	}, func(table *command.Table, rows []historyRow) {
		table.Row("TIME\tWHO\tFROM\tWHAT")
		for _, row := range rows {
			who := strings.TrimSpace(row.Name + " (" + row.Role + ")")
			for _, line := range row.Changes {
				table.Row(row.Time.Format(time.RFC3339), who, row.Address, line)
			}
		}
	})
}
