// How often a node may join, and how often a refusal is logged.
package hub

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// admission limits joins by node and log lines by reason. It has its own lock: it needs nothing else of the hub.
type admission struct {
	limit rate.Limit // joins a second of one name, in the long run

	mutex  sync.Mutex
	joins  map[peerKey]*rate.Limiter
	logged map[string]time.Time // refusals, by host and reason
}

func newAdmission(limit rate.Limit) *admission {
	return &admission{limit: limit, joins: map[peerKey]*rate.Limiter{}, logged: map[string]time.Time{}}
}

// allows counts a join and reports whether it is within the limit.
func (a *admission) allows(key peerKey) bool {
	const atOnce = 10
	a.mutex.Lock()
	defer a.mutex.Unlock()
	limiter := a.joins[key]
	if limiter == nil {
		limiter = rate.NewLimiter(a.limit, atOnce)
		a.joins[key] = limiter
	}
	return limiter.Allow()
}

// logs reports whether a refusal is to be logged: once an hour for each host and reason.
func (a *admission) logs(host, why string) bool {
	const remembered, again = 1000, time.Hour
	a.mutex.Lock()
	defer a.mutex.Unlock()
	known := time.Since(a.logged[host+why]) < again
	if len(a.logged) >= remembered {
		clear(a.logged)
	}
	if !known {
		a.logged[host+why] = time.Now()
	}
	return !known
}
