// ctl suspect list|add|remove.
package local

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// Suspect makes `ballast ctl suspect`.
func Suspect(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "suspect", Short: "List clients whose packets visit a scrubber first"}
	cmd.AddCommand(ListSuspects(c), AddSuspect(c), RemoveSuspect(c))
	return cmd
}

// AddSuspect makes `ballast ctl suspect add`.
func AddSuspect(c *ask.Control) *cobra.Command {
	var s api.Suspect
	var lasting time.Duration
	cmd := changeSuspect(c, http.MethodPost, &s, &cobra.Command{
		Use:   "add --service SERVICE --client ADDRESS|NETWORK",
		Short: "Send a client's packets through the service's scrubber first",
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("for") && lasting < time.Second {
				return command.Usage("--for %s: use a second or more, or leave it out: until the client is cleared", lasting)
			}
			s.For = api.InSeconds(lasting)
			return nil
		},
	})
	cmd.Flags().DurationVar(&lasting, "for", 0, "for so long (default: until it is cleared)")
	return cmd
}

// RemoveSuspect makes `ballast ctl suspect remove`.
func RemoveSuspect(c *ask.Control) *cobra.Command {
	return changeSuspect(c, http.MethodDelete, &api.Suspect{}, &cobra.Command{
		Use:   "remove --service SERVICE --client ADDRESS|NETWORK",
		Short: "Send a suspect's packets directly to the servers again",
	})
}

// changeSuspect completes a command that sends a suspect.
func changeSuspect(c *ask.Control, method string, s *api.Suspect, cmd *cobra.Command) *cobra.Command {
	var client string
	c.CanPlan(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if s.Client, err = api.ParseNetwork(client); err != nil {
			return command.Usage("--client: %w", err)
		}
		return c.ChangeLocal(cmd, method, api.PathSuspects, s)
	}
	cmd.Flags().StringVar(&s.Service, "service", "", "the service")
	cmd.Flags().StringVar(&client, "client", "", "the client's address, or a network")
	command.Require(cmd, "service", "client")
	return cmd
}

// ListSuspects makes `ballast ctl suspect list`.
func ListSuspects(c *ask.Control) *cobra.Command {
	return ask.ListLocal(c, &cobra.Command{Use: "list", Short: "List clients whose packets visit a scrubber first"}, api.PathSuspects,
		func(table *command.Table, list []api.Suspect) {
			table.Row("SERVICE\tCLIENT\tUNTIL")
			for _, s := range list {
				until := "cleared"
				if !s.Until.IsZero() {
					until = s.Until.Format(time.RFC3339)
				}
				table.Row(s.Service, s.Client, until)
			}
		})
}
