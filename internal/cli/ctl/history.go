// Who changed the fleet.
package ctl

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli/command"
)

// historyRow is one change, as --json prints it.
type historyRow struct {
	Time    time.Time `json:"time"`
	Name    string    `json:"name"`
	Role    string    `json:"role"`
	Address string    `json:"address,omitempty"`
	Changes []string  `json:"changes"`
}

func (c *control) historyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "history", Short: "The last changes of the fleet, and who made them",
		Long: `The last 100 changes of the fleet, the newest last: when, who, from where, what. WHO is the name of the certificate with its role; the
user of a controller's own socket (role local); or the controller that did it by itself. Controllers keep them; a load balancer that
runs by a file has them in its log.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := c.fleet(cmd)
			if err != nil {
				return err
			}
			answer, err := fleet.ListChanges(cmd.Context(), &ballastv1.ListChangesRequest{})
			if err != nil {
				return err
			}
			rows := []historyRow{}
			for _, change := range answer.Changes {
				rows = append(rows, historyRow{change.Time.AsTime(), change.Name, change.Role, change.Address, command.NonNil(change.Changes)})
			}
			if c.json {
				return command.WriteJSON(cmd.OutOrStdout(), rows)
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(table, "TIME\tWHO\tFROM\tWHAT")
			for _, row := range rows {
				who := strings.TrimSpace(row.Name + " (" + row.Role + ")")
				for _, line := range row.Changes {
					fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", row.Time.Format(time.RFC3339), who, row.Address, line)
				}
			}
			return table.Flush()
		},
	}
}
