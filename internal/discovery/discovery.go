// Package discovery asks who serves a service: the DNS. What becomes of the answers, internal/machine/discovery decides.
package discovery

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/ballast-lb/ballast/internal/discovery/dns"
	"github.com/ballast-lb/ballast/internal/machine/discovery"
	"github.com/ballast-lb/ballast/internal/model"
)

// asker asks once. wait is how long its answer is good for; the next question comes no later than discovery.Within.
type asker interface {
	Ask(ctx context.Context) (answer discovery.Answer, wait time.Duration)
}

// Bounds of the time between two questions. One that failed is repeated after leastWait, and the time doubles from there.
const (
	leastWait = 5 * time.Second
	mostWait  = 50 * time.Second // and some jitter
	jitter    = 0.1
)

// Options are how sources are asked.
type Options struct {
	Least time.Duration // between two questions, for tests; zero: as it is
}

// Watch reports everything that a source says, again and again, until ctx ends: nobody has to remember what was said before.
func Watch(ctx context.Context, of model.ServerSource, o Options, report func(discovery.Answer)) {
	watch(ctx, dns.New(of), report, cmp.Or(o.Least, leastWait))
}

func watch(ctx context.Context, a asker, report func(discovery.Answer), least time.Duration) {
	failures := 0
	for ctx.Err() == nil {
		answer, wait := a.Ask(ctx)
		if ctx.Err() != nil {
			return
		}
		if failures++; answer.Err == nil {
			failures = 0
		}
		report(answer)
		wait = min(max(wait, least), mostWait)
		if failures > 0 {
			wait = min(least<<min(failures-1, 10), mostWait)
		}
		select {
		case <-time.After(spread(wait)):
		case <-ctx.Done():
		}
	}
}

// spread keeps those who began at the same time apart.
func spread(wait time.Duration) time.Duration {
	return time.Duration(float64(wait) * (1 - jitter + 2*jitter*rand.Float64()))
}
