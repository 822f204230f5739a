// Waiting for conditions: never for time to pass.
package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"connectrpc.com/connect"
)

const pollInterval = 20 * time.Millisecond

// hopeless marks a condition that can no longer come true.
type hopeless struct{ error }

func stopWaiting(err error) error { return hopeless{err} }

// overdue is a condition that has not come true in time.
type overdue struct {
	what   string
	within time.Duration
	last   error // why it was not true when it was last looked at
}

func (o *overdue) Error() string {
	return fmt.Sprintf("wait until %s: not within %v of machine time: %v", o.what, o.within, o.last)
}

// await polls until condition returns nil, for so long of machine time; what names the condition in the error.
func await(ctx context.Context, within time.Duration, what string, condition func() error) error {
	begin := time.Now()
	ticker := time.NewTicker(pollInterval)
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
			if machine().since(begin) > within {
				return &overdue{what, within, err}
			}
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %w", what, context.Cause(ctx), err)
		}
	}
}

// brokenPromise is an error that breaks the scenario's promise. Any other tells that the scenario could not be played.
type brokenPromise struct{ error }

func (b *brokenPromise) Unwrap() error { return b.error }

// awaitPromised is await for what is promised. A daemon that does not answer has broken nothing yet.
func awaitPromised(ctx context.Context, within time.Duration, what string, condition func() error) error {
	err := await(ctx, within, what, condition)
	if late := (*overdue)(nil); errors.As(err, &late) && !unanswered(late.last) {
		return &brokenPromise{err}
	}
	return err
}

// unanswered tells that a question did not reach a daemon, or its answer did not come in time.
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

// errOutOfTime is the cause of a context that has ended because the machine time of its scenario has gone by.
var errOutOfTime = errors.New("the time of the scenario is up")

// withMachineTime ends a context after so much machine time.
func withMachineTime(ctx context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		begin, ticker := time.Now(), time.NewTicker(paceInterval)
		defer ticker.Stop()
		for machine().since(begin) <= within {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
		cancel(fmt.Errorf("%w: %v of machine time, %v by the clock", errOutOfTime, within, time.Since(begin).Round(time.Second)))
	}()
	return ctx, func() { cancel(nil) }
}
