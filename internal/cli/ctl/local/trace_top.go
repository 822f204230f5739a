// ctl trace --top.
package local

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/algo/heavy"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

const (
	topCounted = 4096 // clients, services or verdicts: memory is bounded also in a flood of forged addresses
	topTime    = 10 * time.Second
)

// traceTop is what --top has found.
type traceTop struct {
	Seconds  float64      `json:"seconds"`
	Sampled  uint64       `json:"sampled_packets"`
	LeftOut  uint64       `json:"left_out_packets"` // of the sample: there were too many in a second
	Packets  uint64       `json:"packets"`          // that the sample and what was left out of it stand for
	OneOf    float64      `json:"one_of"`           // Packets, by one that was sampled
	Clients  []traceShare `json:"clients"`
	Services []traceShare `json:"services"`
	Verdicts []traceShare `json:"verdicts"`
	Crowded  bool         `json:"crowded,omitempty"` // more clients than are counted: packets of clients are at least so many
}

// traceShare is what part of the packets are of one.
type traceShare struct {
	Name    string  `json:"name"`
	Packets uint64  `json:"packets"`
	Share   float64 `json:"share"`
	Error   float64 `json:"share_error"` // 19 of 20 samples are within Share plus or minus this
}

func (t *tracing) showTop(cmd *cobra.Command, c *ask.Control) error {
	if t.duration == 0 && t.count == 0 {
		t.duration = topTime
	}
	clients, services, verdicts := heavy.New(topCounted), heavy.New(topCounted), heavy.New(topCounted)
	found, began := traceTop{}, time.Now()
	err := t.follow(cmd, c, parsed(func(e *api.TraceEvent) error {
		weight := uint64(max(e.StandsFor, 1))
		found.Sampled++
		found.LeftOut += uint64(e.Suppressed)
		found.Packets += weight * (1 + uint64(e.Suppressed))
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
	found.Clients, found.Services, found.Verdicts = found.shares(clients, t.top), found.shares(services, t.top), found.shares(verdicts, t.top)
	found.Crowded = clients.Full()
	return command.Print(cmd.OutOrStdout(), c.Output, found, printTop)
}

// shares are those of the heaviest, of all packets that were not left out for want of room, and scaled to all that there were.
func (f *traceTop) shares(counts *heavy.Counts, most int) []traceShare {
	out := []traceShare{}
	for _, count := range counts.Top(most) {
		share := float64(count.AtLeast()) / float64(counts.Total())
		s := traceShare{Name: count.Key, Packets: uint64(math.Round(share * float64(f.Packets))), Share: share}
		if f.Packets > f.Sampled {
			s.Error = 2 * math.Sqrt(share*(1-share)/float64(f.Sampled))
		}
		out = append(out, s)
	}
	return out
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
		shares []traceShare
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
