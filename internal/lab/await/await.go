// Package await is how scenarios wait: for conditions, never for time to pass, and in machine time.
package await

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Implementation constants.
const (
	Interval = 20 * time.Millisecond // between two polls of a condition
	Deadline = 60 * time.Second      // of what takes a second where nothing else runs
)

// hopeless marks a condition that can no longer come true.
type hopeless struct{ error }

// Stop makes an error one that ends the wait: the condition can no longer come true.
func Stop(err error) error { return hopeless{err} }

// overdue is a condition that has not come true in time.
type overdue struct {
	what   string
	within time.Duration
	last   error // of the last poll
}

func (o *overdue) Error() string {
	return fmt.Sprintf("wait until %s: not within %v of machine time: %v", o.what, o.within, o.last)
}

// Until polls until condition returns nil, at most for the given machine time; what names the condition in the error.
func Until(ctx context.Context, within time.Duration, what string, condition func() error) {
	script.Check(poll(ctx, within, what, condition))
}

func poll(ctx context.Context, within time.Duration, what string, condition func() error) error {
	begin := time.Now()
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		if never := (hopeless{}); errors.As(err, &never) {
			return fmt.Errorf("wait until %s: %w", what, never.error)
		}
		select {
		case <-ticker.C:
			if loadmeter.Since(begin) > within {
				return &overdue{what, within, err}
			}
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %w", what, context.Cause(ctx), err)
		}
	}
}

// BrokenPromise is an error that breaks the scenario's promise. Any other means that the scenario could not be played.
type BrokenPromise struct{ error }

// Broken makes an error one that breaks the promise.
func Broken(err error) error { return &BrokenPromise{err} }

func (b *BrokenPromise) Unwrap() error { return b.error }

// Promised is Until for what is promised. A daemon that does not answer has broken nothing yet.
func Promised(ctx context.Context, within time.Duration, what string, condition func() error) {
	err := poll(ctx, within, what, condition)
	if late := (*overdue)(nil); errors.As(err, &late) && !unanswered(late.last) {
		err = Broken(err)
	}
	script.Check(err)
}

// unanswered reports whether a request did not reach a daemon, or its answer did not come in time.
func unanswered(err error) bool {
	var transport *url.Error
	if errors.As(err, &transport) {
		return true
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}
