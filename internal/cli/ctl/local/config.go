// ctl config.
package local

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// Config makes `ballast ctl config`.
func Config(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Compare a daemon's state with its configuration file, and reload the file"}
	act := func(name string, act *cobra.Command) *cobra.Command {
		force := act.Flags().Bool("force", false, "even if living connections lose their servers")
		allowRemove := new(false)
		if name == "reload" {
			allowRemove = act.Flags().Bool(api.AllowRemove, false, "even if services whose connections live are gone, or more than a third of a service's servers")
		}
		c.CanPlan(act)
		act.Use = name
		act.RunE = func(cmd *cobra.Command, _ []string) error {
			path := strings.Replace(api.PathConfigAction, "{action}", name, 1)
			return c.ChangeLocal(cmd, http.MethodPost, fmt.Sprintf("%s?%s=%t&%s=%t", path, api.Force, *force, api.AllowRemove, *allowRemove), nil)
		}
		return act
	}
	cmd.AddCommand(act("reload", &cobra.Command{
		Short: "Read the file of a load balancer or agent again now",
	}), act("reset", &cobra.Command{
		Short: "Undo what ctl changed: the file rules",
	}), &cobra.Command{
		Use: "diff", Short: "Show what ctl changed since",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.ChangeLocal(cmd, http.MethodGet, api.PathConfigDiff, nil)
		},
	})
	return cmd
}
