// Package fleet has the commands of ctl about the whole fleet: what is in it, and what is to be in it.
package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/config"
)

func showFleet(c *ask.Control) *cobra.Command {
	var revision uint64
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the whole fleet, without keys, as a file for apply",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Tabular() {
				return command.Usage("a fleet is no table: use -o yaml, which is the default, or -o json")
			}
			wanted, err := fleetAt(c, cmd, revision)
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
			_, err = command.File(cmd).Write(text)
			return err
		},
	}
	cmd.Flags().Uint64Var(&revision, "revision", 0, "the fleet as it was after this `REVISION` of `ballast ctl history list` (default: as it is)")
	return cmd
}

// historyRow is one change, as --json prints it.
type historyRow struct {
	Revision uint64    `json:"revision,omitempty"`
	Kept     bool      `json:"kept"` // the fleet of this revision can be shown, and rolled back to
	Time     time.Time `json:"time"`
	Name     string    `json:"name"`
	Role     string    `json:"role"`
	Address  string    `json:"address,omitempty"`
	Comment  string    `json:"comment,omitempty"`
	Changes  []string  `json:"changes"`
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
			rows = append(rows, historyRow{change.Revision, change.Kept, change.Time.AsTime(), change.Name, change.Role, change.Address, change.Comment,
				command.NonNil(change.Changes)})
		}
		return rows, err
	}, func(table *command.Table, rows []historyRow) {
		table.Row("REVISION\tTIME\tWHO\tFROM\tWHAT")
		for _, row := range rows {
			revision, who := "-", strings.TrimSpace(row.Name+" ("+row.Role+")")
			if row.Kept {
				revision = fmt.Sprint(row.Revision)
			}
			lines := row.Changes
			if row.Comment != "" {
				lines = append([]string{"# " + row.Comment}, lines...)
			}
			for _, line := range lines {
				table.Row(revision, row.Time.Format(time.RFC3339), who, row.Address, line)
			}
		}
	})
}
