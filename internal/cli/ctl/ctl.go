// Package ctl is `ballast ctl`: it looks at a running fleet, and changes what it does.
package ctl

import (
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/cli/ctl/contexts"
	"github.com/ballast-lb/ballast/internal/cli/ctl/fleet"
	"github.com/ballast-lb/ballast/internal/cli/ctl/invite"
	"github.com/ballast-lb/ballast/internal/cli/ctl/keys"
	"github.com/ballast-lb/ballast/internal/cli/ctl/local"
	"github.com/ballast-lb/ballast/internal/cli/ctl/pki"
)

// Command makes `ballast ctl`.
func Command() *cobra.Command {
	cmd := &cobra.Command{Use: "ctl", Short: "Show and change a running fleet"}
	c := ask.New(cmd)
	cmd.AddGroup(&cobra.Group{ID: "commands", Title: "Commands:"}, &cobra.Group{ID: "short", Title: "Short forms:"})
	node := fleet.Node(c)
	node.AddCommand(ask.Short("invite", "invite add", invite.Add(c)))
	group(cmd, "commands", fleet.Service(c), fleet.Server(c), fleet.Source(c), node, invite.Command(c), fleet.Replica(c), fleet.Controller(c), fleet.Fleet(c), fleet.History(c), fleet.Apply(c), fleet.Explain(c),
		keys.Key(c), keys.Ticket(c),
		local.Status(c), local.Counter(c), local.Metrics(c), local.Connection(c), local.Suspect(c), local.Session(c), local.Trace(c), local.Config(c), local.QUIC(c),
		local.BGP(c), local.L2(c), local.Backup(c), pki.Command(c), contexts.Command(c))
	connections := ask.Short("connections", "connection list", local.ListConnections(c))
	connections.AddCommand(ask.Short("suspects", "suspect list", local.ListSuspects(c)), ask.Short("suspect", "suspect add", local.AddSuspect(c)),
		ask.Short("clear", "suspect remove", local.RemoveSuspect(c)))
	counters := ask.Short("counters", "counter list", local.ListCounters(c))
	counters.AddCommand(ask.Short("reset", "counter reset", local.ResetCounters(c)))
	group(cmd, "short", ask.Short("services", "service list", fleet.ListServices(c)), ask.Short("servers", "server list", fleet.ListServers(c)),
		ask.Short("nodes", "node list", fleet.ListNodes(c)), ask.Short("replicas", "replica list", fleet.ListReplicas(c)),
		ask.Short("keys", "key list", keys.ListKeys(c)), ask.Short("tickets", "ticket list", keys.ListTickets(c)),
		ask.Short("sessions", "session list", local.ListSessions(c)), connections, counters)
	c.Explain(cmd)
	c.Complete(cmd)
	c.TakeKubernetesNames(cmd)
	return cmd
}

// group adds commands that are listed together.
func group(cmd *cobra.Command, id string, members ...*cobra.Command) {
	for _, member := range members {
		member.GroupID = id
	}
	cmd.AddCommand(members...)
}
