// ctl sessions.
package local

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// ListSessions makes `ballast ctl session list`.
func ListSessions(c *ask.Control) *cobra.Command {
	return ask.ListLocal(c, &cobra.Command{Use: "list", Short: "Show services with session tls: resumed connections, and why others did not resume"},
		api.PathSessions, printSessions)
}

// Session makes `ballast ctl session`.
func Session(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "session", Short: "Show what becomes of TLS sessions"}
	cmd.AddCommand(ListSessions(c))
	return cmd
}

func printSessions(table *command.Table, services []api.SessionCounts) {
	if len(services) == 0 {
		table.Line("no service has session tls")
		return
	}
	head, outcomes := "SERVICE\tSYNS\tHANDSHAKES\tRESUMED\tBY POLICY\tNONE\tUNKNOWN\tUNAVAILABLE\tLIMITED", []string{"none", "unknown", "unavailable", "limited"}
	if table.Wide {
		head += "\tUNTIMED\tINCOMPLETE\tMALFORMED\tNOT TLS"
		outcomes = append(outcomes, "untimed", "incomplete", "malformed", "not_tls")
	}
	table.Row(head)
	for i := range services {
		s := &services[i]
		elsewhere := -s.Hellos["resumed"]
		for _, hellos := range s.Hellos {
			elsewhere += hellos
		}
		cells := []any{s.Service, s.Answered, s.Handshakes, s.Hellos["resumed"], elsewhere}
		for _, outcome := range outcomes {
			cells = append(cells, s.Hellos[outcome])
		}
		table.Row(cells...)
	}
}

// printSession is what a trace says of a hello.
func printSession(out io.Writer, s *api.TraceSession) {
	if s == nil {
		return
	}
	fmt.Fprintf(out, " session %s", s.Outcome)
	if s.Identity != "" {
		fmt.Fprintf(out, " by %s %s...", s.Identity, s.Name)
	}
	if s.ID != 0 {
		fmt.Fprintf(out, " of id %d", s.ID)
	}
}
