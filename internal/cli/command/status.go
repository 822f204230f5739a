// What the process ends with: one table of exit statuses for every command.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Exit statuses, of every command that does not document its own: help/ballast.txt.
const (
	StatusFailed = 1   // it was tried, or refused, and the reason said
	StatusUsage  = 2   // the command line is wrong: nothing was tried
	statusOpen   = 3   // no answer: it may or may not have been carried out
	statusSignal = 128 // plus the signal that ended it: 130 after Ctrl-C
)

// ExitStatus is an error that is an answer: the process ends with that status and has nothing more to say.
type ExitStatus int

func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// withStatus is an error that is said, and that ends the process with its own status.
type withStatus struct {
	error
	status int
}

func (e *withStatus) Unwrap() error { return e.error }

// WithStatus ends the process with a status of its own for an error.
func WithStatus(err error, status int) error { return &withStatus{err, status} }

// Usage is what is wrong with a command line.
func Usage(format string, values ...any) error {
	return WithStatus(fmt.Errorf(format, values...), StatusUsage)
}

// Caught is the cause of a context that a signal ended.
type Caught unix.Signal

func (s Caught) Error() string { return "interrupted by " + unix.SignalName(unix.Signal(s)) }

// Finish says what went wrong and chooses the status. What ended by itself when it was told to has not failed.
func Finish(cause error, command *cobra.Command, err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	stderr = legible{stderr}
	var answer ExitStatus
	if errors.As(err, &answer) {
		return int(answer)
	}
	var interruption Caught
	if errors.As(cause, &interruption) {
		var open *connect.Error
		if errors.As(err, &open) && open.Code() == connect.CodeUnknown { // sent, and not answered
			err = fmt.Errorf("%w: %w", interruption, err)
		} else if errors.Is(err, context.Canceled) {
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
	case with.status == StatusUsage && command.Annotations[UsageIsFailure] != "":
		return StatusFailed
	}
	return with.status
}

// UsageIsFailure annotates commands for which StatusUsage is an answer.
const UsageIsFailure = "usage is failure"
