// Package discovery asks who serves a service: the DNS, Consul or a file. What becomes of the answers, internal/machine/discovery decides.
package discovery

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/ballast-lb/ballast/internal/discovery/consul"
	"github.com/ballast-lb/ballast/internal/discovery/dns"
	"github.com/ballast-lb/ballast/internal/discovery/file"
	"github.com/ballast-lb/ballast/internal/machine/discovery"
	"github.com/ballast-lb/ballast/internal/model"
)

// asker asks once. wait is how long its answer is good for; the next question comes no later than discovery.Within.
type asker interface {
	Ask(ctx context.Context) (answer discovery.Answer, wait time.Duration)
}

// pace bounds the time between two questions. One that failed is repeated after least, and the time doubles from there.
type pace struct{ least, most time.Duration }

var (
	ofDNS    = pace{5 * time.Second, 50 * time.Second}
	ofConsul = pace{time.Second, 50 * time.Second}    // queries end with a change
	ofFile   = pace{2 * time.Second, 2 * time.Second} // reading costs nothing
)

const jitter = 0.1 // of these

// Options are how sources are asked.
type Options struct {
	Dir   string        // of this host, with what sources may be asked: consul/NAME.yaml are agents of Consul, and files/ lists of servers
	Least time.Duration // between two questions, for tests; zero: as it is
}

// Watch reports everything that a source says, again and again, until ctx ends: nobody has to remember what was said before.
func Watch(ctx context.Context, of model.ServerSource, o Options, report func(discovery.Answer)) {
	var a asker
	var p pace
	switch of.From {
	case model.SourceConsul:
		a, p = consul.New(of, o.Dir), ofConsul
	case model.SourceFile:
		a, p = file.New(of, o.Dir), ofFile
	default:
		a, p = dns.New(of), ofDNS
	}
	p.least = cmp.Or(o.Least, p.least)
	watch(ctx, a, report, p)
}

func watch(ctx context.Context, a asker, report func(discovery.Answer), p pace) {
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
		wait = min(max(wait, p.least), p.most)
		if failures > 0 {
			wait = min(p.least<<min(failures-1, 10), p.most)
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
