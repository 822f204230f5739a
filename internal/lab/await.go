// Waiting for conditions: never for time to pass.
package lab

import (
	"context"
	"errors"
	"fmt"
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
