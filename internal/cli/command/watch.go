// --watch: a list is shown again and again, whatever becomes of the daemon meanwhile.
package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/api"
)

// How often --watch looks, unless it is told.
const (
	watchPeriod      = time.Second
	shortestInterval = 10 * time.Millisecond
)

// watching is --watch and what goes with it.
type watching struct {
	on       bool
	interval time.Duration
	count    int
}

// Listing completes a command that finds something out and prints it, once or again and again.
func Listing[T any](cmd *cobra.Command, o *Output, find func(cmd *cobra.Command, args []string) (T, error), show func(*Table, T)) *cobra.Command {
	w := &watching{}
	flags := cmd.Flags()
	flags.BoolVarP(&w.on, "watch", "w", false, "show it again every second, until Ctrl-C")
	flags.DurationVar(&w.interval, "interval", watchPeriod, "with --watch: so often")
	flags.IntVar(&w.count, "count", 0, "with --watch: end after so many looks")
	once := Reading(cmd, o, find, show).RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := w.check(cmd.Flags().Changed("interval")); err != nil {
			return err
		}
		if !w.on {
			return once(cmd, args)
		}
		return watch(w, cmd, o, func() (T, error) { return find(cmd, args) }, show)
	}
	return cmd
}

// Watches reports whether a command that Listing has completed looks again.
func Watches(cmd *cobra.Command) bool {
	on, err := cmd.Flags().GetBool("watch")
	return err == nil && on
}

// check refuses what makes no sense.
func (w *watching) check(interval bool) error {
	switch {
	case w.count < 0:
		return Usage("--count %d: use 1 or more, or leave it out: until Ctrl-C", w.count)
	case w.count > 0 && !w.on:
		return Usage("--count ends a --watch: give both")
	case w.interval < shortestInterval:
		return Usage("--interval %s: use %s or more", w.interval, shortestInterval)
	case interval && !w.on:
		return Usage("--interval is how often a --watch looks: give both")
	}
	return nil
}

func watch[T any](w *watching, cmd *cobra.Command, o *Output, find func() (T, error), show func(*Table, T)) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	looks, silent := 0, false
	ended, err := Every(ctx, w.interval, func() (bool, error) {
		found, err := find()
		switch {
		case ctx.Err() != nil:
			return false, nil
		case err != nil && looks > 0 && unanswered(err):
			if !silent {
				fmt.Fprintf(cmd.ErrOrStderr(), "no answer: %v: still watching\n", err)
			}
			silent = true
			return false, nil
		case err != nil:
			return false, err
		}
		if silent {
			fmt.Fprintln(cmd.ErrOrStderr(), "there are answers again")
		}
		silent = false
		looks++
		return looks == w.count, o.again(out, looks, func(to io.Writer) error {
			if o.AsJSON() { // a document a line
				return json.NewEncoder(to).Encode(found)
			}
			return Print(to, o, found, show)
		})
	})
	if err != nil || ended {
		return err
	}
	return interrupted(ctx)
}

// again writes one look after others: as a whole, so that a terminal does not flicker.
func (o *Output) again(out io.Writer, look int, print func(io.Writer) error) error {
	var text bytes.Buffer
	if err := print(&text); err != nil {
		return err
	}
	switch {
	case o.format == formatYAML && look > 1:
		io.WriteString(out, "---\n")
	case o.Structured():
	case IsTerminal(out):
		Control(out, EraseScreen)
	case look > 1:
		io.WriteString(out, "\n")
	}
	_, err := out.Write(text.Bytes())
	return err
}

// unanswered reports whether a daemon that answered before may do so again: it restarts, or is out of reach.
func unanswered(err error) bool {
	var refused *api.Error
	if errors.As(err, &refused) {
		return refused.Code >= 500
	}
	var fleet *connect.Error
	if errors.As(err, &fleet) {
		code := fleet.Code()
		return code == connect.CodeUnavailable || code == connect.CodeUnknown || code == connect.CodeDeadlineExceeded
	}
	return true
}

// interrupted is the end of what goes on until somebody ends it: with the signal's status, and nothing to say.
func interrupted(ctx context.Context) error {
	var signal Caught
	if errors.As(context.Cause(ctx), &signal) {
		return ExitStatus(statusSignal + int(signal))
	}
	return ctx.Err()
}
