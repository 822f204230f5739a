// Package ctl is `ballast ctl`: it looks at a running fleet, and changes what it does.
package ctl

import (
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
	"github.com/ballast-lb/ballast/internal/cli/ctl/fleet"
	"github.com/ballast-lb/ballast/internal/cli/ctl/keys"
	"github.com/ballast-lb/ballast/internal/cli/ctl/local"
	"github.com/ballast-lb/ballast/internal/cli/ctl/pki"
)

// Command makes `ballast ctl`.
func Command() *cobra.Command {
	cmd := &cobra.Command{Use: "ctl", Short: "Look at a running fleet and change what it does"}
	c := ask.New(cmd)
	cmd.AddCommand(fleet.Services(c), fleet.Servers(c), fleet.Nodes(c), fleet.Fleet(c), fleet.History(c),
		fleet.Apply(c), fleet.Service(c), fleet.Server(c), fleet.Node(c), fleet.Replicas(c), fleet.Replica(c), fleet.Controller(c),
		keys.Keys(c), keys.Key(c), keys.Tickets(c), keys.Ticket(c),
		local.Status(c), local.Counters(c), local.Metrics(c), local.Connections(c), local.Sessions(c), local.Trace(c), local.Config(c), local.QUIC(c), local.BGP(c), local.Backup(c),
		pki.Command(c))
	return cmd
}
