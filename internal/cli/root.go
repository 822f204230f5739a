// Package cli is the command line: flags, help and human output. What the commands do is elsewhere.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/cli/bench"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl"
	"github.com/ballast-lb/ballast/internal/cli/daemons"
	"github.com/ballast-lb/ballast/internal/cli/lab"
	"github.com/ballast-lb/ballast/internal/cli/sim"
)

// Root returns the command `ballast`.
func Root(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "ballast",
		Short: "A layer-4 load balancer that never breaks a connection",
		Long: `Ballast spreads connections over servers and keeps every connection on its server, whatever happens to the set of
servers and the set of load balancers. Each connection names its server by an opaque cookie in its TCP timestamps.

A fleet is described by one file, the same for every node (deploy/ballast.yaml is a complete one):
  ballast lb -f ballast.yaml       on each load balancer
  ballast agent -f ballast.yaml    on each server (services with return: direct)
  ballast ctl ...                  shows a running daemon and changes what it does

Many nodes run by controllers instead, and nobody copies files (docs/install.md):
  ballast controller ...           keeps the fleet, judges health, weighs servers by their load
  ballast lb --controller ...      and: ballast agent --controller ..., ballast ctl --controller ... apply -f ballast.yaml

Before and beside all that:
  ballast validate ballast.yaml    checks a configuration file
  ballast doctor -f ballast.yaml   finds what breaks set-ups, with the remedy
  ballast lab run churn            shows it all in network namespaces of this machine
  ballast sim run all              checks what the papers claim, and simulates fleets that nobody has

` + command.StatusHelp,
		SilenceUsage:     true,
		SilenceErrors:    true,
		PersistentPreRun: command.PrintLegibly,
	}
	root.AddCommand(daemons.LB(version), daemons.Agent(version), daemons.Pass(), daemons.Controller(version), ctl.Command(), daemons.Validate(), daemons.Doctor(),
		lab.Command(), bench.Command(), sim.Command(), versionCommand(version))
	command.Strict(root)
	return root
}

func versionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "ballast", version)
			return err
		},
	}
}

// Main runs a command line and returns the status to end with.
func Main(version string, arguments []string, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(signals)
	go func() { cancel(command.Caught((<-signals).(unix.Signal))) }()
	root := Root(version)
	root.SetArgs(arguments)
	cmd, err := root.ExecuteContextC(ctx)
	return command.Finish(context.Cause(ctx), cmd, err, stderr)
}
