// What the process ends with: one table of exit statuses for every command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Exit statuses, of every command that does not document its own.
const (
	StatusFailed = 1   // it was tried, or refused, and the reason said
	StatusUsage  = 2   // the command line is wrong: nothing was tried
	statusOpen   = 3   // no answer: it may or may not have been carried out
	statusSignal = 128 // plus the signal that ended it: 130 after Ctrl-C
)

const statusHelp = `Exit status of every command:
  0    done; of a daemon: asked to stop
  1    failed or refused; of lab, sim and doctor: a promise is broken, a claim fails, there is a problem
  2    the command line is wrong: nothing was tried; of ` + "`ballast ctl apply --dry-run`" + `: something would change;
       of ` + "`ballast lab run`" + `: the scenario could not be played; of ` + "`ballast sim`" + `: a claim is inconclusive
  3    of ` + "`ballast ctl`" + `: no answer: the change may or may not have been carried out
  130  interrupted by Ctrl-C (143: by SIGTERM) before it was done`

// ExitStatus is an error that is an answer: the process ends with that status and has nothing more to say.
type ExitStatus int

func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// withStatus is an error that is said, and that ends the process with its own status.
type withStatus struct {
	error
	status int
}

func (e *withStatus) Unwrap() error { return e.error }

// usage is what is wrong with a command line.
func usage(format string, values ...any) error {
	return &withStatus{fmt.Errorf(format, values...), StatusUsage}
}

// Main runs a command line and returns the status to end with.
func Main(version string, arguments []string, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(signals)
	go func() { cancel(caught((<-signals).(unix.Signal))) }()
	root := Root(version)
	root.SetArgs(arguments)
	command, err := root.ExecuteContextC(ctx)
	return finish(context.Cause(ctx), command, err, stderr)
}

// caught is the cause of a context that a signal ended.
type caught unix.Signal

func (s caught) Error() string { return "interrupted by " + unix.SignalName(unix.Signal(s)) }

// finish says what went wrong and chooses the status. What ended by itself when it was told to has not failed.
func finish(cause error, command *cobra.Command, err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	stderr = legible{stderr}
	var answer ExitStatus
	if errors.As(err, &answer) {
		return int(answer)
	}
	var interruption caught
	if errors.As(cause, &interruption) {
		if errors.Is(err, context.Canceled) {
			err = interruption
		}
		fmt.Fprintln(stderr, "ballast:", err)
		return statusSignal + int(interruption)
	}
	fmt.Fprintln(stderr, "ballast:", err)
	var with *withStatus
	var refused *connect.Error
	switch {
	case errors.As(err, &refused) && refused.Code() == connect.CodeUnknown:
		return statusOpen
	case !errors.As(err, &with):
		return StatusFailed
	case with.status == StatusUsage && command.Annotations[usageIsFailure] != "":
		return StatusFailed
	}
	return with.status
}

// usageIsFailure annotates commands for which StatusUsage is an answer.
const usageIsFailure = "usage is failure"
