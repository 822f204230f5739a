// Waiting for conditions: never for time to pass.
package lab

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const pollInterval = 20 * time.Millisecond

// hopeless marks a condition that can no longer come true.
type hopeless struct{ error }

func stopWaiting(err error) error { return hopeless{err} }

// await polls until condition returns nil; what names the condition in the error.
func await(ctx context.Context, within time.Duration, what string, condition func() error) error {
	patience := time.NewTimer(within)
	defer patience.Stop()
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
		case <-patience.C:
			return fmt.Errorf("wait until %s: not within %v: %w", what, within, err)
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %w", what, context.Cause(ctx), err)
		}
	}
}

// lateness begins to add up how much later than it wanted this process was woken, until ctx ends, and tells it: what other work on the
// machine takes away from promises of time.
func lateness(ctx context.Context) (late func() time.Duration) {
	const nap = 10 * time.Millisecond
	var sum atomic.Int64
	go func() {
		for ctx.Err() == nil {
			began := time.Now()
			time.Sleep(nap)
			sum.Add(int64(time.Since(began) - nap))
		}
	}()
	return func() time.Duration { return time.Duration(sum.Load()) }
}
