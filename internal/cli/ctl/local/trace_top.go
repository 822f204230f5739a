// ctl trace --top.
package local

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/algo/heavy"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/sampled"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

const (
	topCounted = 4096 // clients, services or verdicts: memory is bounded also in a flood of forged addresses
	topTime    = 10 * time.Second
)

// traceTop is what --top has found.
type traceTop struct {
	Seconds float64 `json:"seconds"`
	sampled.Tally
	OneOf    float64         `json:"one_of"` // Packets, by one that was sampled
	Clients  []sampled.Share `json:"clients"`
	Services []sampled.Share `json:"services"`
	Verdicts []sampled.Share `json:"verdicts"`
	Crowded  bool            `json:"crowded,omitempty"` // more clients than are counted: packets of clients are at least so many
}

func (t *tracing) showTop(cmd *cobra.Command, c *ask.Control) error {
	if t.duration == 0 && t.count == 0 {
		t.duration = topTime
	}
	clients, services, verdicts := heavy.New(topCounted), heavy.New(topCounted), heavy.New(topCounted)
	found, began := traceTop{}, time.Now()
	err := t.follow(cmd, c, parsed(func(e *api.TraceEvent) error {
		weight := found.Add(e)
		clients.Add(e.Source.Addr().String(), weight)
		services.Add(cmp.Or(e.Service, "(none)"), weight)
		verdicts.Add(e.Verdict, weight)
		return nil
	}))
	if err != nil {
		return err
	}
	found.Seconds = time.Since(began).Seconds()
	found.OneOf = float64(found.Packets) / float64(max(found.Sampled, 1))
	found.Clients, found.Services, found.Verdicts = found.Shares(clients, t.top), found.Shares(services, t.top), found.Shares(verdicts, t.top)
	found.Crowded = clients.Full()
	return command.Print(cmd.OutOrStdout(), c.Output, found, printTop)
}

func printTop(table *command.Table, f traceTop) {
	if f.Sampled == 0 {
		table.Line("no packet in %.1f seconds", f.Seconds)
		return
	}
	if f.Packets == f.Sampled {
		table.Line("%d packets in %.1f seconds: all", f.Packets, f.Seconds)
	} else {
		table.Line("about %d packets in %.1f seconds, of which %d were looked at by chance: 1 of %.0f", f.Packets, f.Seconds, f.Sampled, f.OneOf)
	}
	for _, of := range []struct {
		name   string
		shares []sampled.Share
	}{{"CLIENT", f.Clients}, {"SERVICE", f.Services}, {"VERDICT", f.Verdicts}} {
		table.Line("")
		table.Row(of.name + "\tPACKETS\tSHARE")
		for _, s := range of.shares {
			within := ""
			if s.Error > 0 {
				within = fmt.Sprintf(" +- %.1f", 100*s.Error)
			}
			table.Row(s.Name, s.Packets, fmt.Sprintf("%.1f%%%s", 100*s.Share, within))
		}
	}
	if f.Crowded {
		table.Line("")
		table.Line("There are %d clients or more: of each there may be more packets than are shown.", topCounted)
	}
}
