package traffic

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Arrivals are connections that come by a Poisson process however many are open: clients that do not know of each other. Flows
// with equal Arrivals see the same arrivals and draw the same values, whatever they are served by (common random numbers).
type Arrivals struct {
	Seed      uint64        `json:"seed"`
	PerSecond float64       `json:"per_second"` // at the beginning and at the end
	Peak      float64       `json:"peak"`       // in the middle, reached and left along a cosine; 0: constant
	Length    time.Duration `json:"length"`     // nothing arrives later
}

// rate is the connections per second at a time after the beginning.
func (a *Arrivals) rate(at time.Duration) float64 {
	if a.Peak == 0 {
		return a.PerSecond
	}
	swing := (1 - math.Cos(2*math.Pi*at.Seconds()/a.Length.Seconds())) / 2
	return a.PerSecond + (a.Peak-a.PerSecond)*swing
}

// schedule draws one arrival after the other.
type schedule struct {
	*Arrivals
	random *rand.Rand
	at     time.Duration
	index  uint64
}

func newSchedule(arrivals *Arrivals) *schedule {
	return &schedule{Arrivals: arrivals, random: rand.New(rand.NewPCG(arrivals.Seed, 0))}
}

// next is when the next connection is due after the beginning, and the random stream of its own draws.
func (s *schedule) next() (due time.Duration, own *rand.Rand, more bool) {
	highest := max(s.PerSecond, s.Peak)
	for s.at < s.Length {
		s.at += time.Duration(s.random.ExpFloat64() / highest * float64(time.Second))
		// Thinning: a process of the highest rate, of which as many are taken as the rate of the moment wants.
		if taken := s.random.Float64()*highest < s.rate(s.at); taken && s.at < s.Length {
			s.index++
			return s.at, rand.New(rand.NewPCG(s.Seed, s.index)), true
		}
	}
	return 0, nil, false
}

// openLoop starts each connection when it is due and waits for all of them.
func (r *runner) openLoop(ctx context.Context, flow *Flow) {
	var connections sync.WaitGroup
	defer connections.Wait()
	begin, arrivals := time.Now(), newSchedule(flow.Arrivals)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for due, own, more := arrivals.next(); more; due, own, more = arrivals.next() {
		timer.Reset(time.Until(begin.Add(due)))
		select {
		case <-timer.C:
		case <-r.stopping:
			return
		case <-ctx.Done():
			return
		}
		one := flow.drawn(own)
		source := r.begin(flow)
		connections.Go(func() {
			connection := r.connect(ctx, one, source)
			connection.Started = begin.Add(due)
			r.end(connection)
		})
	}
}

// drawn is the flow with the values of one connection.
func (f *Flow) drawn(own *rand.Rand) *Flow {
	one := *f
	one.Requests = slices.Clone(f.Requests)
	for i := range one.Requests {
		request := &one.Requests[i]
		if request.Draw.IsZero() {
			continue
		}
		value := int64(math.Round(request.Draw.At(own.Float64())))
		if strings.Contains(request.Path, Drawn) {
			request.Path = strings.ReplaceAll(request.Path, Drawn, strconv.FormatInt(value, 10))
		} else {
			request.Bytes = max(value, 1)
		}
	}
	return &one
}
