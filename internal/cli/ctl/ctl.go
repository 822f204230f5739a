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
	cmd := &cobra.Command{
		Use:   "ctl",
		Short: "Look at a running fleet and change what it does",
		Long: `Look at a running fleet and change what it does: a load balancer that runs by a file, over its local socket, or all of those that
run by controllers, over a controller's local socket or with --controller and a certificate for role ctl from anywhere.

Commands named by a noun read; those named by a noun and a verb change. Changes take effect at once. Those of a load balancer that
runs by a file are of this node alone (repeat them on the other nodes), survive restarts of the daemon, and stay until
somebody changes the same thing again, here or in the file: see ` + "`ballast ctl config diff`" + ` for what differs from it.
Those that a controller takes are of the whole fleet. ` + "`ballast ctl apply -f FILE`" + ` makes a fleet what a file says, as a whole.

What is of one node only (status, counters, connections, metrics, trace, config) is asked at that node.`,
		Example: `  ballast ctl servers
  ballast ctl server drain web s3 --deadline 10m --wait
  ballast ctl apply -f fleet.yaml --dry-run
  ballast ctl --controller c1,c2,c3 --tls-dir ~/.ballast nodes
  ballast ctl --instance c1 keys`,
	}
	c := ask.New(cmd)
	cmd.AddCommand(fleet.Services(c), fleet.Servers(c), fleet.Nodes(c), fleet.Fleet(c), fleet.History(c),
		fleet.Apply(c), fleet.Service(c), fleet.Server(c), fleet.Node(c),
		keys.Keys(c), keys.Key(c),
		local.Status(c), local.Counters(c), local.Metrics(c), local.Connections(c), local.Trace(c), local.Config(c),
		pki.Command())
	return cmd
}
