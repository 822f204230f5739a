// How a program of ours runs a command line.
package command

import (
	"context"
	"io"
	"os"
	"os/signal"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Main runs a command line of root until it ends or a signal interrupts it, and returns the exit status.
func Main(root *cobra.Command, arguments []string, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(signals)
	go func() { cancel(Caught((<-signals).(unix.Signal))) }()
	root.SetArgs(arguments)
	cmd, err := root.ExecuteContextC(ctx)
	if flag := cmd.Flags().Lookup(DryRunFlag); flag != nil && slices.Contains(arguments, "--"+DryRunFlag) {
		flag.Changed = true // also behind what is wrong with the command line
	}
	return Finish(context.Cause(ctx), cmd, err, ForJournal(stderr))
}
