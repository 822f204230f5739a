// Package loadmeter measures how loaded the machine is, and counts machine time by it: limits follow a machine that is
// slow (an emulator) or busy with other things.
package loadmeter

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sort"
	"sync"
	"time"
)

// Implementation constants. A sample takes about nominal on the machines that the lab's limits were chosen on when they
// have nothing else to do; it is longer than what a scheduler gives away at once, so that it waits where everybody
// waits.
const (
	rounds   = 3_000_000
	nominal  = 8 * time.Millisecond
	interval = time.Second
	slowest  = 50 // times: a machine that is slower than that is not worth waiting for
)

// clock is how fast the machine works. Machine time goes by as time does where nothing else runs, and slower where all
// work takes longer. It never goes faster than time.
type clock struct {
	mutex   sync.Mutex
	samples []reading
}

// reading is the machine time at a time, and how many times slower all goes from then on.
type reading struct {
	at      time.Time
	machine time.Duration
	slower  float64
}

// machine is measured from the first time that anybody asks until the process ends.
var machine = sync.OnceValue(func() *clock {
	p := &clock{}
	p.note(time.Now(), sample())
	go func() {
		for {
			woken := time.Now().Add(interval)
			time.Sleep(interval)
			late := time.Since(woken) // to be woken late is to be slow
			p.note(time.Now(), late+sample())
		}
	}()
	return p
})

// sample does a fixed amount of work and returns how long it took.
func sample() time.Duration {
	begin, x := time.Now(), uint64(88172645463325252)
	for range rounds {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	runtime.KeepAlive(x)
	return time.Since(begin)
}

// note adds a sample: what was done at a time took so long. Samples come in order.
func (p *clock) note(at time.Time, took time.Duration) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	slower := min(max(float64(took)/float64(nominal), 1), slowest)
	p.samples = append(p.samples, reading{at: at, machine: p.at(at), slower: slower})
}

// at is the machine time at a time; before the first sample it goes as time does. Callers hold the mutex.
func (p *clock) at(when time.Time) time.Duration {
	after := sort.Search(len(p.samples), func(i int) bool { return p.samples[i].at.After(when) })
	if after == 0 {
		if len(p.samples) == 0 {
			return 0
		}
		return p.samples[0].machine - p.samples[0].at.Sub(when)
	}
	last := p.samples[after-1]
	return last.machine + time.Duration(float64(when.Sub(last.at))/last.slower)
}

// between is the machine time from one time to another.
func (p *clock) between(from, to time.Time) time.Duration {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.at(to) - p.at(from)
}

// Begin makes sure that machine time is measured from now on.
func Begin() { machine() }

// Between is the machine time from one time to another.
func Between(from, to time.Time) time.Duration { return machine().between(from, to) }

// Since is the machine time that has gone by since a time.
func Since(from time.Time) time.Duration { return Between(from, time.Now()) }

// ErrOutOfTime is the cause of a context that has ended because the machine time of its scenario has gone by.
var ErrOutOfTime = errors.New("the time of the scenario is up")

// WithTimeout ends a context after so much machine time.
func WithTimeout(ctx context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		begin, ticker := time.Now(), time.NewTicker(interval)
		defer ticker.Stop()
		for Since(begin) <= within {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
		cancel(fmt.Errorf("%w: %v of machine time, %v by the clock", ErrOutOfTime, within, time.Since(begin).Round(time.Second)))
	}()
	return ctx, func() { cancel(nil) }
}
