// Package local has the commands of ctl about one node, which is asked at its own socket.
package local

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/model"
)

// anyStatus is that of a load balancer, or what an agent has in common with it and its own.
type anyStatus struct {
	api.LBStatus
	Epoch       uint32             `json:"epoch,omitempty"`
	Echoes      map[uint32]uint64  `json:"echoes,omitempty"`
	Tunnels     api.Tunnels        `json:"tunnels,omitzero"`
	IDFiles     []string           `json:"connection_ids,omitempty"`
	TicketFiles []string           `json:"session_tickets,omitempty"`
	TicketKeys  []api.TicketKeys   `json:"ticket_keys,omitempty"`
	Joins       []netip.AddrPort   `json:"mptcp,omitempty"`
	Untracked   []netip.AddrPort   `json:"untracked,omitempty"`
	Gateways    []api.Gateway      `json:"gateways,omitempty"`
	Probes      []api.ProbedPort   `json:"probes,omitempty"`
	Translated  *api.TranslatedUse `json:"translated,omitempty"`

	others []string // what other daemons of this machine have to say
}

// Status makes `ballast ctl status`.
func Status(c *ask.Control) *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show readiness, configuration file and problems"}
	return command.Listing(cmd, c.Output, func(cmd *cobra.Command, _ []string) (answer anyStatus, err error) {
		client, err := c.Local()
		if err == nil {
			err = client.Get(cmd.Context(), api.PathStatus, &answer)
		}
		if err == nil && !c.Structured() {
			answer.others = others(cmd.Context(), c)
		}
		return answer, err
	}, printStatus)
}

// others are the daemons of this machine that nobody has asked for, and that are not well.
func others(ctx context.Context, c *ask.Control) (lines []string) {
	ctx, cancel := context.WithTimeout(ctx, othersTime)
	defer cancel()
	for _, instance := range c.Unasked() {
		var s anyStatus
		text := ""
		switch err := c.At(instance).Get(ctx, api.PathStatus, &s); {
		case err != nil:
			text = "does not answer"
		case !s.Ready:
			text = s.Role + " is not ready"
		case len(s.Problems) > 0:
			text = s.Role + " has " + model.Counted(len(s.Problems), "problem", "problems")
		default:
			continue
		}
		lines = append(lines, fmt.Sprintf("%s: %s: `%s status`", instance, text, api.Ctl(instance)))
	}
	return lines
}

const othersTime = 2 * time.Second // for all of them

func printStatus(out *command.Table, s anyStatus) {
	out.Line("role\t%s\nready\t%v\nversion\t%s\nchanges applied\t%d", s.Role, s.Ready, s.Version, s.Generation)
	if controller, named := strings.CutPrefix(s.Config.Path, "controller "); named && s.ByControllers {
		how := "state from"
		if !slices.Contains(s.Controllers, controller) {
			how = "last state from"
		}
		out.Line("%s\t%s", how, controller)
	} else if s.Config.Path != "" {
		out.Line("file\t%s", s.Config.Path)
	}
	if len(s.Controllers) > 0 || s.Revision > 0 {
		out.Line("controllers\t%s\nrevision\t%d", strings.Join(s.Controllers, ", "), s.Revision)
	}
	for _, service := range slices.Sorted(maps.Keys(s.SYNProxy)) {
		out.Line("syn proxy\tservice %s: on since %s", service, s.SYNProxy[service].UTC().Format(time.RFC3339))
	}
	printTier(out, &s.LBStatus)
	printReplicas(out, s.Replicas)
	if s.Config.Error != "" {
		since := ""
		if s.Config.RefusedSince != nil {
			since = ", since " + s.Config.RefusedSince.UTC().Format(time.RFC3339)
		}
		out.Line("refused\t%s%s", s.Config.Error, since)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Interfaces)) {
		out.Line("interface\t%s (%s)", name, s.Interfaces[name])
	}
	printTunnels(out, &s.Tunnels)
	printGateways(out, s.Gateways)
	for _, path := range s.IDFiles {
		out.Line("connection ids\tby %s", path)
	}
	for _, path := range s.TicketFiles {
		out.Line("session tickets\tby %s", path)
	}
	for _, keys := range s.TicketKeys {
		switch keys.Source {
		case "controllers":
			out.Line("ticket keys	service %s: epoch %d of controllers, %d are read", keys.Service, keys.Epoch, len(keys.Read))
		case "file":
			out.Line("ticket keys	service %s: by --ticket-key", keys.Service)
		default:
			out.Line("ticket keys	service %s: of this host alone", keys.Service)
		}
	}
	for _, at := range s.Joins {
		out.Line("mptcp\tclients join at %s", at)
	}
	for _, at := range s.Untracked {
		out.Line("not tracked\ttcp %s", at)
	}
	for _, probe := range s.Probes {
		when := "never"
		if probe.Age != nil {
			when = fmt.Sprintf("last %.0f s ago", float64(*probe.Age))
		}
		out.Line("probes\t%s %s, no address of this host: %s (%s)", probe.Protocol, probe.At, probe.State, when)
	}
	if t := s.Translated; t != nil && t.Entries > 0 {
		out.Line("translated\t%d connections of %d (%.0f s ago), %d evicted", t.Entries, t.Room, float64(t.Age), t.Evicted)
	}
	for _, epoch := range slices.Sorted(maps.Keys(s.Echoes)) {
		note := ""
		if epoch == s.Epoch {
			note = ", which is written"
		} else if epoch == 0 {
			note = ": of a key that is gone"
		}
		out.Line("connections\t%d on epoch %d%s", s.Echoes[epoch], epoch, note)
	}
	for _, problem := range s.Problems {
		kind := "problem"
		if slices.Contains(s.NotReady, problem) {
			kind = "not ready"
		}
		out.Line("%s\t%s", kind, problem)
	}
	for _, line := range s.others {
		out.Line("also here\t%s", line)
	}
}

// printTunnels tells whose an agent takes.
func printTunnels(out *command.Table, t *api.Tunnels) {
	switch {
	case t.Source == "":
		return
	case t.Limited:
		out.Line("tunnels\tonly from these, known from %s", t.Source)
	default:
		out.Line("tunnels\tfrom every address: %s", t.Open)
	}
	for _, from := range t.From {
		out.Line("tunnels from\t%s", from)
	}
	if t.Last.IsValid() {
		out.Line("foreign tunnels\t%s from other addresses, the last from %s", model.Counted(t.Foreign, "packet", "packets"), t.Last)
	}
}

// printGateways tells which load balancers a network function sends to.
func printGateways(out *command.Table, gateways []api.Gateway) {
	for _, g := range gateways {
		how, route := "does not answer", "not in the route"
		if g.Answers {
			how = "answers"
		}
		if g.Used {
			route = fmt.Sprintf("in the route of table %d", g.Table)
		}
		age := "never"
		if g.Heard != nil {
			age = fmt.Sprintf("last %.1f s ago", float64(*g.Heard))
		}
		out.Line("gateway\t%s %s, %s, %s", g.Address, how, age, route)
	}
}

// printTier tells of a load balancer's part in two tiers.
func printTier(out *command.Table, s *api.LBStatus) {
	if s.Name != "" {
		out.Line("node\t%s", s.Name)
	}
	if s.Tier == nil {
		return
	}
	fmt.Fprintf(out, "tier\t%s", s.Tier.Tier)
	if s.Tier.ID != 0 {
		fmt.Fprintf(out, ", with id %d at %s", s.Tier.ID, s.Tier.Address)
	}
	fmt.Fprintln(out)
	for _, node := range s.Tier.Second {
		out.Line("second tier\t%s: id %d at %s, %s, %s, %s sent", node.Name, node.ID, node.Address, node.State, node.Health, model.Counted(node.Packets, "packet", "packets"))
		if node.HealthDetail != "" {
			out.Line("\t%s", node.HealthDetail)
		}
	}
}

// printReplicas tells of a load balancer's part in the replicated table.
func printReplicas(out *command.Table, r *api.ReplicaStatus) {
	switch {
	case r == nil:
		return
	case r.Version == 0:
		out.Line("replicas\tno ring is known")
	case r.OnRing:
		out.Line("replicas\ton the ring, version %d: %s and %s, room for %d of each", r.Version,
			model.Counted(r.Entries, "entry", "entries"), model.Counted(r.Answers, "answer", "answers"), r.Room)
	default:
		out.Line("replicas\tnot on the ring, version %d: %s, room for %d", r.Version, model.Counted(r.Answers, "answer", "answers"), r.Room)
	}
	for _, peer := range r.Peers {
		where := "on the ring"
		if !peer.OnRing {
			where = "not on the ring"
		}
		out.Line("peer\t%s at %s: %s, %s", peer.Name, peer.Address, where, peer.State)
	}
}

// Metrics makes `ballast ctl metrics`.
func Metrics(c *ask.Control) *cobra.Command {
	return &cobra.Command{
		Use: "metrics", Short: "Print all metrics in the Prometheus format",
		RunE: func(cmd *cobra.Command, _ []string) error {
			stream, err := c.Stream(cmd, api.PathMetrics)
			if err != nil {
				return err
			}
			defer stream.Close()
			_, err = io.Copy(cmd.OutOrStdout(), stream)
			return err
		},
	}
}
