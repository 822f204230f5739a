// Package cli is the command line: flags, help and human output. What the commands do is elsewhere.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/cli/bench"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl"
	"github.com/ballast-lb/ballast/internal/cli/daemons"
	"github.com/ballast-lb/ballast/internal/cli/help"
	"github.com/ballast-lb/ballast/internal/cli/lab"
	"github.com/ballast-lb/ballast/internal/cli/sim"
)

// Root returns the command `ballast`.
func Root(version string) *cobra.Command {
	root := &cobra.Command{
		Use:              "ballast",
		Short:            "A layer-4 load balancer that never breaks a connection",
		SilenceUsage:     true,
		SilenceErrors:    true,
		PersistentPreRun: command.PrintLegibly,
	}
	root.AddCommand(daemons.LB(version), daemons.Agent(version), daemons.Pass(), daemons.Controller(version), ctl.Command(), daemons.Validate(), daemons.Doctor(),
		lab.Command(), bench.Command(), sim.Command(), versionCommand(version))
	help.Add(root)
	command.Strict(root)
	return root
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
	return command.Finish(context.Cause(ctx), cmd, err, command.ForJournal(stderr))
}
