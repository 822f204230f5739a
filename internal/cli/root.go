// Package cli is the command line: flags, help and human output. What the commands do is elsewhere.
package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
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

` + statusHelp,
		SilenceUsage:     true,
		SilenceErrors:    true,
		PersistentPreRun: printLegibly,
	}
	root.AddCommand(lbCommand(version), AgentCommand(version), passCommand(), controllerCommand(version), ctlCommand(), validateCommand(), DoctorCommand(), LabCommand(), BenchCommand(), SimCommand(), versionCommand(version))
	strict(root)
	return root
}

func versionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "ballast", version)
			return err
		},
	}
}

// newLog writes what a daemon has to say, for people and for log collectors.
func newLog(verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

func writeJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
