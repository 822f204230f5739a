// Package cli is the command line: flags, help and human output. What the commands do is elsewhere.
package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/ctl"
	"github.com/ballast-lb/ballast/internal/cli/daemons"
	"github.com/ballast-lb/ballast/internal/cli/help"
	"github.com/ballast-lb/ballast/internal/cli/version"
)

// Root returns the command `ballast`; build is its version.
func Root(build string) *cobra.Command {
	root := &cobra.Command{
		Use:              "ballast",
		Short:            "A layer-4 load balancer that keeps connections on their servers",
		SilenceUsage:     true,
		SilenceErrors:    true,
		PersistentPreRun: command.PrintLegibly,
	}
	root.AddCommand(daemons.LB(build), daemons.Agent(build), daemons.Pass(), daemons.Controller(build), daemons.Join(build), daemons.Leave(), ctl.Command(), daemons.Validate(), daemons.Doctor(),
		version.Command(build))
	help.Add(root, help.Texts)
	command.Strict(root)
	return root
}

// Main runs a command line and returns its exit status.
func Main(build string, arguments []string, stderr io.Writer) int {
	return command.Main(Root(build), arguments, stderr)
}
