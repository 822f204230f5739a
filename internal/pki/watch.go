// What is wrong with the files of credentials, said when it begins.
package pki

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

// How often Watch looks, and says again what has not been mended.
const (
	watchPeriod = 5 * time.Second
	warnAgain   = day
)

// Watch logs what Warnings returns when it begins, from time to time, and when it is gone, until ctx ends.
func (c *Credentials) Watch(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	var before []string
	var said time.Time
	for {
		now := time.Now()
		warnings := c.Warnings(now)
		if again := now.Sub(said) >= warnAgain; again || !slices.Equal(warnings, before) {
			for _, warning := range warnings {
				if again || !slices.Contains(before, warning) {
					log.Warn(warning)
				}
			}
			if len(before) > 0 && len(warnings) == 0 {
				log.Info("certificates are in order again")
			}
			before, said = warnings, now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
