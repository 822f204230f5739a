// What the process ends with: one table of exit statuses for every command.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
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

// NotFound is an answer of this program where it has looked for itself: as daemons say that there is nothing of a name.
func NotFound(format string, values ...any) error {
	return &api.Error{Code: http.StatusNotFound, Message: fmt.Sprintf(format, values...)}
}

// Caught is the cause of a context that a signal ended.
type Caught unix.Signal

func (s Caught) Error() string { return "interrupted by " + unix.SignalName(unix.Signal(s)) }

// Finish says what went wrong and chooses the status. What ended by itself when it was told to has not failed.
func Finish(cause error, command *cobra.Command, err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	var answer ExitStatus
	if errors.As(err, &answer) {
		return int(answer)
	}
	status, err := outcome(cause, command, err)
	o := outputOf(command)
	asJSON := o != nil && o.AsJSON()
	stderr = legible{stderr, !asJSON}
	if asJSON {
		WriteJSON(stderr, failure{described{err.Error(), codeOf(err, status), status, api.WarningsOf(err)}})
		return status
	}
	fmt.Fprintf(stderr, "%s: %v\n", command.Root().Name(), err)
	return status
}

// outcome returns the exit status of an error, and the error to report.
func outcome(cause error, command *cobra.Command, err error) (status int, reported error) {
	var refused *connect.Error
	open := errors.As(err, &refused) && refused.Code() == connect.CodeUnknown // sent, and not answered
	var interruption Caught
	if errors.As(cause, &interruption) {
		if open {
			err = fmt.Errorf("%w: %w", interruption, err)
		} else if errors.Is(err, context.Canceled) {
			err = interruption
		}
		return statusSignal + int(interruption), err
	}
	var with *withStatus
	switch {
	case open:
		return statusOpen, err
	case !errors.As(err, &with):
		return StatusFailed, err
	case with.status == StatusUsage && isDryRun(command):
		return StatusFailed, err
	}
	return with.status, err
}

// failure is an error for programs.
type failure struct {
	Error described `json:"error"`
}

// described is what is known of an error. Its message ends with the remedy, as for people.
type described struct {
	Message  string   `json:"message"`
	Code     string   `json:"code"`
	Status   int      `json:"exit_status"`
	Warnings []string `json:"warnings,omitempty"` // what would be harmed: repeat it with --yes if that is meant
}

// codeOf names the kind of an error: as the fleet API does where a daemon has refused something.
func codeOf(err error, status int) string {
	var refused *connect.Error
	var local *api.Error
	var with *withStatus
	switch {
	case status == statusOpen:
		return "outcome_unknown"
	case status > statusSignal:
		return "interrupted"
	case errors.As(err, &refused):
		return refused.Code().String()
	case errors.As(err, &local) && local.Kind != "":
		return local.Kind
	case errors.As(err, &local):
		return strings.ReplaceAll(strings.ToLower(http.StatusText(local.Code)), " ", "_")
	case errors.As(err, &with) && with.status == StatusUsage:
		return "usage"
	}
	return "failed"
}

// DryRunFlag is the flag of commands that change something: StatusUsage says then that they would.
const DryRunFlag = "dry-run"

func isDryRun(command *cobra.Command) bool {
	flag := command.Flags().Lookup(DryRunFlag)
	return flag != nil && flag.Changed
}
