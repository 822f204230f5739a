// Sources of servers: source list.
package fleet

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// sourceRow is what is known of who names the servers of a service.
type sourceRow struct {
	Service string     `json:"service"`
	Source  string     `json:"source"`  // dns web.example.com
	Servers uint32     `json:"servers"` // that the last good answer names
	Good    *time.Time `json:"good"`    // when that came; null: none has
	Age     *float64   `json:"age_seconds"`
	Problem string     `json:"problem,omitempty"` // why servers are not what the source says now
}

func sourceOf(s *ballastv1.SourceStatus) sourceRow {
	row := sourceRow{Service: s.Service, Source: s.Source, Servers: s.Servers, Problem: s.Problem}
	if s.Good != nil {
		at := s.Good.AsTime()
		row.Good, row.Age = &at, new(time.Since(at).Seconds())
	}
	return row
}

// Source makes `ballast ctl source`.
func Source(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "source", Short: "Show who names the servers of services: DNS, Consul, files"}
	cmd.AddCommand(listSources(c))
	return cmd
}

// listSources makes `ballast ctl source list`.
func listSources(c *ask.Control) *cobra.Command {
	return command.Listing(&cobra.Command{Use: "list [SERVICE]", Short: "List sources of servers with the age of their last good answers"}, c.Output,
		func(cmd *cobra.Command, args []string) ([]sourceRow, error) {
			answer, err := ask.Fleet(c, cmd, ballastv1connect.FleetClient.ListServers, &ballastv1.ListServersRequest{Service: strings.Join(args, "")})
			rows := []sourceRow{}
			for _, s := range answer.GetSources() {
				rows = append(rows, sourceOf(s))
			}
			return rows, err
		}, func(table *command.Table, rows []sourceRow) {
			table.Row("SERVICE\tSOURCE\tSERVERS\tLAST ANSWER\tPROBLEM")
			for _, r := range rows {
				table.Row(r.Service, r.Source, r.Servers, r.age(), command.OrDash(r.Problem))
			}
		})
}

func (r *sourceRow) age() string {
	if r.Age == nil {
		return "none"
	}
	return (time.Duration(*r.Age) * time.Second).String() + " ago"
}
