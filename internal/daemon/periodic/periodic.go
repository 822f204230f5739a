// Package periodic does what a daemon does again and again.
package periodic

import (
	"context"
	"time"
)

// Every calls do in each period until ctx ends.
func Every(ctx context.Context, period time.Duration, do func(now time.Time)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			do(now)
		}
	}
}
