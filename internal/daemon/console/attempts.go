// Wrong tokens: how many an address may try, and what the log says of them.
package console

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Implementation constants.
const (
	attemptsAtOnce  = 10          // wrong tokens that an address may send before it has to pause
	attemptsPause   = time.Minute // until it may send the next one
	attemptsReport  = time.Hour   // at most one line of log for each address
	attemptsAddress = 1000        // addresses that are remembered
)

// attempts are the wrong tokens of each address. The zero value knows none. Time is an argument.
type attempts struct {
	mutex sync.Mutex
	by    map[string]*attempted
}

type attempted struct {
	limit    *rate.Limiter
	reported time.Time
}

// pauses reports whether an address has to wait before it may try again.
func (a *attempts) pauses(address string, now time.Time) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	one := a.by[address]
	return one != nil && one.limit.TokensAt(now) < 1
}

// wrong counts a wrong token of an address, and tells whether to report it.
func (a *attempts) wrong(address string, now time.Time) (report bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	one := a.by[address]
	if one == nil {
		if a.by == nil || len(a.by) >= attemptsAddress {
			a.by = map[string]*attempted{}
		}
		one = &attempted{limit: rate.NewLimiter(rate.Every(attemptsPause), attemptsAtOnce)}
		a.by[address] = one
	}
	one.limit.AllowN(now, 1)
	report = one.reported.IsZero() || now.Sub(one.reported) >= attemptsReport
	if report {
		one.reported = now
	}
	return report
}
