package queueing

import (
	"math"
	"slices"

	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// Config describes a world of requests.
type Config struct {
	Seed    uint64
	Servers []Size                  // at the start: 0 to len-1
	GapNS   float64                 // between requests on average; they come at random (Poisson). 0: none come
	Work    func(flow uint64) int64 // of a request, ns on a core of speed 1
	Chooser flows.Chooser           // is shown how many requests are open at each server

	Interval int64          // ns between reports; 0: there are none
	Report   func(w *World) // is called then: ask Tell of each server

	Ended func(ns int64) // is told how long every request took, whether it counts or not; may be nil
}

// Size is what a server can do.
type Size struct {
	Cores int
	Speed float64 // of each core; work takes 1/Speed of its time
}

// World is servers that share their processors among all requests that they have, behind a balancer whose own time does not count. Each request
// is on a connection of its own, whatever becomes of those before (an open loop). Arrivals and work depend on the seed and the number of the
// request only, so that all policies meet the same requests.
//
// The experiment drives, as it does in package flows. Not safe for concurrent use.
type World struct {
	*network
	config   Config
	sizes    []Size
	open     []int32  // requests at each server
	live     int      // in all
	reported []totals // by server

	gaps   random.Stream
	next   float64 // ns: of the next request
	rating uint32  // how often the rate has changed
	born   []int64 // ns, by flow

	first   uint64  // flow of the first request that counts
	times   []int64 // from arrival to end, ns
	broken  int64   // cut off by failures
	windows windows
}

// told is what a server had done when it last told: in sum, so that differences are means.
type totals struct {
	busyNS int64
	waitNS float64 // of all its requests together
	at     int64
}

// windows gather how busy servers are in each second.
type windows struct {
	past     []totals // by server, as it was when the window began, or when it came in the midst of it
	away     []bool   // by server: it is none of those that count
	number   uint32   // how often they began anew
	mean     float64
	variance float64 // between servers. Both are sums over windows
	count    float64
}

// windowNS is how long a window is.
const windowNS = second

// Alarms of a world. Those that something has overtaken are known by their numbers.
const (
	reports = 0
	window  = 1 << 29 // and how often windows began anew
	arrival = 1 << 30 // and how often the rate has changed
)

// New makes a world at time 0 without requests.
func New(c Config) *World {
	w := &World{network: newNetwork(), config: c, gaps: random.New(c.Seed, "arrivals")}
	for _, size := range c.Servers {
		w.AddServer(size)
	}
	if c.Interval != 0 {
		w.alarm(c.Interval, reports)
	}
	w.expect()
	return w
}

// Now returns the time, ns.
func (w *World) Now() int64 { return w.now }

// AddServer adds a server, whose number is the next.
func (w *World) AddServer(size Size) {
	w.add(size.Cores)
	w.sizes, w.open = append(w.sizes, size), append(w.open, 0)
	w.reported, w.windows.past, w.windows.away = append(w.reported, totals{at: w.now}), append(w.windows.past, totals{at: w.now}), append(w.windows.away, false)
}

// SetActive says whether a server counts among those whose work is compared. Who gets requests is the chooser's business.
func (w *World) SetActive(server uint32, active bool) {
	if w.windows.away[server] == active {
		w.windows.away[server] = !active
		w.windows.past[server] = w.sum(int(server))
	}
}

// SetSpeed has a server work at another speed. Requests that are there take as long as before.
func (w *World) SetSpeed(server uint32, speed float64) { w.sizes[server].Speed = speed }

// Fail cuts off all requests of a server.
func (w *World) Fail(server uint32) {
	for _, flow := range w.drop(int(server)) {
		if uint64(flow) >= w.first {
			w.broken++
		}
	}
	for w.open[server] > 0 {
		w.live--
		w.ended(int(server))
	}
}

// ended takes one request less to be open at a server.
func (w *World) ended(server int) {
	if follower, ok := w.config.Chooser.(flows.Follower); ok {
		follower.Ended(uint32(server), w.open[server])
	}
	w.open[server]--
}

// SetRate has requests come at other gaps from now on, ns; 0: none come.
func (w *World) SetRate(gapNS float64) {
	w.config.GapNS, w.next = gapNS, float64(w.now)
	w.rating++
	w.expect()
}

// expect plans the next request.
func (w *World) expect() {
	if w.config.GapNS == 0 {
		return
	}
	w.next += w.gaps.Exp(w.config.GapNS)
	if w.next < math.MaxInt64 {
		w.alarm(int64(w.next), arrival+w.rating)
	}
}

// Reset has only what comes from now on count.
func (w *World) Reset() {
	w.first, w.times, w.broken = uint64(len(w.born)), nil, 0
	w.windows.number++
	w.windows.mean, w.windows.variance, w.windows.count = 0, 0, 0
	for server := range w.windows.past {
		w.windows.past[server] = w.sum(server)
	}
	w.alarm(w.now+windowNS, window+w.windows.number)
}

// RunUntil lets happen what comes before a time, which it is then.
func (w *World) RunUntil(until int64) {
	for {
		h, ok := w.network.next(until)
		if !ok {
			return
		}
		switch {
		case !h.alarm:
			w.end(h)
		case h.id == arrival+w.rating:
			w.arrive()
			w.expect()
		case h.id == window+w.windows.number:
			w.close()
			w.alarm(w.now+windowNS, window+w.windows.number)
		case h.id == reports:
			w.config.Report(w)
			w.alarm(w.now+w.config.Interval, reports)
		}
	}
}

func (w *World) arrive() {
	flow := uint64(len(w.born))
	w.born = append(w.born, w.now)
	server := w.config.Chooser.Choose(flow, w.open)
	w.open[server]++
	w.live++
	w.enter(int(server), uint32(flow), int64(float64(w.config.Work(flow))/w.sizes[server].Speed))
}

func (w *World) end(h happening) {
	w.ended(h.station)
	w.live--
	if w.config.Ended != nil {
		w.config.Ended(w.now - w.born[h.id])
	}
	w.count(h.id)
}

func (w *World) count(flow uint32) {
	if uint64(flow) >= w.first {
		w.times = append(w.times, w.now-w.born[flow])
	}
}

// Finish serves the requests that are still there, until a time at most, and then puts Times in order. Nobody else comes: the last few have it a
// little easier. Those that are not done by then count as if they were.
func (w *World) Finish(until int64) {
	for w.live > 0 {
		h, ok := w.network.next(until)
		if !ok {
			break
		}
		if !h.alarm {
			w.end(h)
		}
	}
	for server := range w.open {
		for _, flow := range w.drop(server) {
			w.count(flow)
		}
		w.open[server] = 0
	}
	w.live = 0
	slices.Sort(w.times)
}
