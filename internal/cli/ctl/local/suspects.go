// ctl connections suspects|suspect|clear.
package local

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

func suspect(c *ask.Control) *cobra.Command {
	var s api.Suspect
	var lasting time.Duration
	cmd := changeSuspect(c, http.MethodPost, &s, &cobra.Command{
		Use:   "suspect --service SERVICE --client ADDRESS|NETWORK",
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

func clearSuspect(c *ask.Control) *cobra.Command {
	return changeSuspect(c, http.MethodDelete, &api.Suspect{}, &cobra.Command{
		Use:   "clear --service SERVICE --client ADDRESS|NETWORK",
		Short: "Send a suspect's packets directly to the servers again",
	})
}

// changeSuspect completes a command that sends a suspect.
func changeSuspect(c *ask.Control, method string, s *api.Suspect, cmd *cobra.Command) *cobra.Command {
	var client string
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

func suspects(c *ask.Control) *cobra.Command {
	return ask.ReadLocal(c, &cobra.Command{Use: "suspects", Short: "Clients whose packets visit a scrubber first"}, api.PathSuspects,
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
