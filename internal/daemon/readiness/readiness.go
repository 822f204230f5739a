// Package readiness tells the log, systemd and controllers whether a daemon does its work, and what is not as wanted.
package readiness

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/daemon/systemd"
)

// period is how often it is looked at.
const period = time.Second

// startup is how long a daemon may take to become ready before that is worth a warning.
const startup = 10 * time.Second

// Log tells what keeps a daemon from its work, and when that ends.
func Log(ctx context.Context, log *slog.Logger, health func() []string) {
	began, first, starting, before := time.Now(), true, true, []string(nil)
	look := func(time.Time) {
		stops, was := health(), starting
		starting = starting && len(stops) > 0 && time.Since(began) < startup
		if late := was && !starting && len(stops) > 0; !first && !late && slices.Equal(stops, before) {
			return
		}
		first, before = false, stops
		if len(stops) > 0 {
			why, level := strings.Join(stops, "; "), slog.LevelWarn
			if starting {
				level = slog.LevelInfo
			}
			log.Log(ctx, level, "not ready", "why", why)
			systemd.Status(log, "not ready: "+why)
			return
		}
		log.Info("ready")
		systemd.Status(log, "ready")
	}
	look(time.Time{})
	periodic.Every(ctx, period, look)
}

// conditionRepeat is how often a node tells its condition although nothing has changed: a controller may have come.
const conditionRepeat = 5 * time.Second

// Report tells controllers whether the node is ready, and what is not as wanted, until ctx ends.
func Report(ctx context.Context, send func(*ballastv1.FromNode), look func() *ballastv1.Condition) {
	var last *ballastv1.Condition
	var reported time.Time
	periodic.Every(ctx, period, func(now time.Time) {
		found := look()
		if proto.Equal(found, last) && now.Sub(reported) < conditionRepeat {
			return
		}
		last, reported = found, now
		send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: found}})
	})
}
