// Controllers: controller list|remove.
package fleet

import (
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// controllerRow is one controller, as --json prints it.
type controllerRow struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	State   string `json:"state"` // voter, joining, external
	Leader  bool   `json:"leader"`
	Alive   bool   `json:"alive"`
	Version string `json:"version,omitempty"`
}

// Controller makes `ballast ctl controller`.
func Controller(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "controller", Short: "Manage the controllers that keep the fleet's state"}
	list := command.Listing(&cobra.Command{Use: "list", Short: "List controllers and whether they are alive"}, c.Output,
		func(cmd *cobra.Command, _ []string) ([]controllerRow, error) {
			client, err := c.Controllers()
			if err != nil {
				return nil, err
			}
			answer, err := client.ListControllers(cmd.Context(), &ballastv1.ListControllersRequest{})
			rows := []controllerRow{}
			for _, m := range answer.GetControllers() {
				rows = append(rows, controllerRow{m.Name, m.Address, m.State, m.Leader, m.Alive, m.Version})
			}
			return rows, err
		}, printControllers)
	remove := &cobra.Command{
		Use: "remove NAME", Short: "Remove a controller that is gone for good, or is to leave",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := c.Controllers()
			if err != nil {
				return err
			}
			answer, err := client.RemoveController(cmd.Context(), &ballastv1.RemoveControllerRequest{Name: args[0], DryRun: c.DryRun()})
			if err != nil {
				return err
			}
			return c.PrintOutcome(cmd, ask.Outcome{Changes: answer.Changes, DryRun: c.DryRun()})
		},
	}
	c.CanPlan(remove)
	cmd.AddCommand(list, remove)
	return cmd
}

func printControllers(out *command.Table, rows []controllerRow) {
	out.Row("NAME\tADDRESS\tSTATE\tALIVE\tLEADER\tVERSION")
	yes := func(is bool) string {
		if is {
			return "yes"
		}
		return "no"
	}
	for _, r := range rows {
		out.Row(command.OrDash(r.Name), r.Address, r.State, yes(r.Alive), yes(r.Leader), command.OrDash(r.Version))
	}
}
