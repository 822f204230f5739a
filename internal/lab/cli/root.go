// Package cli is the command line of ballast-lab: scenarios, benchmarks and simulations.
package cli

import (
	"embed"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/cli/help"
	"github.com/ballast-lb/ballast/internal/cli/version"
	"github.com/ballast-lb/ballast/internal/lab/cli/bench"
	"github.com/ballast-lb/ballast/internal/lab/cli/sim"
	"github.com/ballast-lb/ballast/internal/lab/process"
)

//go:embed help/*.txt
var texts embed.FS

// Root returns the command `ballast-lab`; build is its version.
func Root(build string) *cobra.Command {
	root := &cobra.Command{
		Use:              process.Program,
		Short:            "Put Ballast to the test: scenarios in network namespaces, benchmarks, simulations",
		SilenceUsage:     true,
		SilenceErrors:    true,
		PersistentPreRun: command.PrintLegibly,
	}
	root.AddCommand(run(), list(), clean(), compare(), bench.Command(build), sim.Command(), version.Command(build))
	own, err := fs.Sub(texts, "help")
	if err != nil {
		panic(err)
	}
	help.Add(root, own)
	command.Strict(root)
	return root
}

// Main runs a command line and returns its exit status. The processes that labs and benchmarks start take another form: process.Peer, a name
// and options.
func Main(build string, arguments []string, stderr io.Writer) int {
	if len(arguments) > 0 && arguments[0] == process.Peer {
		return process.Main(arguments[1:], stderr)
	}
	return command.Main(Root(build), arguments, stderr)
}
