// Package flows is a world of connections: they arrive, a load balancer gives each a server, servers come and go, connections end. It
// knows how many were led to more than one server, and how even the servers' loads were, with 8 bytes for each living connection.
//
// The experiment drives: it runs the world up to a moment, looks, changes who owns what, and runs it on. Arrivals, lives and hashes depend
// on the seed and the number of the connection only, so that all policies meet the same connections.
//
// A connection counts as broken when it is mapped to at least two servers in its life (Cheetah I), whether it has packets at the wrong
// moment or not. That costs nothing while connections live: the table knows when each cell's owner last changed, and a connection asks when
// it ends. Broken or not, it loads its first server until then.
package flows

import (
	"fmt"
	"math"

	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim/event"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

const second = 1e9 // ns

// MaxDepth is the longest history that is told apart.
const MaxDepth = 16

// Config describes a world. Exactly one of Table and Chooser must be there.
type Config struct {
	Seed      uint64
	Servers   int               // at the start: 0 to Servers-1, all active
	Rate      float64           // arrivals per second, Poisson
	Durations data.Distribution // of connections, in seconds
	Imbalance bool              // follow the imbalance through every event; else Stats has none, and tables are faster

	Table   *Table  // connections find their server by their hash
	Chooser Chooser // a server is chosen once, and connections carry it with them: cookies
}

// Table is a way to find servers without remembering connections.
type Table struct {
	Owners  []uint32 // the server of every cell at the start; cell = bucket*Choices + choice
	Choices int      // cells of a bucket: candidates of SHELL; 0 counts as 1, at most 4

	// Depth is how many distinct owners of a cell, the present one included, a connection is led to: it survives while its server is among
	// them. 1: the owner only. 2: Beamer's daisy chain. More, up to MaxDepth: SHELL's history. 0 counts as 1. It matters to Stats.Broken only.
	Depth int

	// Accepts reports whether a candidate takes a connection, by its live connections. The last candidate has to. nil: the first does.
	Accepts func(server uint32, load int32) bool

	// Nodes are the load balancers that connections come through, by a cell of their own hash; nil: it does not matter, they all know the
	// same. Otherwise each remembers its connections itself (affinity local-table), and looks up those only that it does not know.
	Nodes []uint32
}

// Chooser is a policy that chooses among servers for each new connection.
type Chooser interface {
	// Choose returns the server of a flow. loads are the live connections of every server, to look at only.
	Choose(flow uint64, loads []int32) (server uint32)
}

// Stats are counted since the last Reset.
type Stats struct {
	Arrived int64
	Ended   int64 // Depths and Cut together
	Broken  int64 // of Ended: led to another server than their first with the table's depth, or cut off by its failure

	// Depths counts what ended in its own time, by the least depth that would have led it to its server to the end: one run shows what plain
	// hash (1), Beamer (2) and SHELL break. More than MaxDepth is counted as MaxDepth+1. What is chosen once needs 1.
	Depths [MaxDepth + 2]int64
	Cut    int64 // by the failure of a server

	// Imbalance is the time average of max/mean - 1 of the active servers' live connections.
	Imbalance float64
}

// BrokenAt returns how many connections a table of a given depth breaks, those that are cut included. depth is at most MaxDepth; 0 counts as 1.
func (s *Stats) BrokenAt(depth int) int64 {
	broken := s.Cut
	for _, n := range s.Depths[max(depth, 1)+1:] {
		broken += n
	}
	return broken
}

// World is a simulation. Not safe for concurrent use.
type World struct {
	config  Config
	queue   *event.Queue
	steer   steerer
	balance balance

	now   int64   // ns
	rate  float64 // arrivals per ns
	gap   float64 // ns between arrivals, on average
	next  float64 // ns, of the next arrival; infinite when the rate is 0
	ahead float64 // mean gaps until the next arrival, while the rate is 0
	flow  uint64  // number of the next arrival
	live  int64
	loads []int32
	// counting tells that loads are counted.
	counting bool
	stats    Stats

	gaps   random.Stream
	lives  *random.Sampler // ns
	lifeOf random.Key
	drawn  arrivals
}

// steerer is how connections find servers: tables or choosers.
type steerer interface {
	// arrive takes a flow in and returns its server and what the queue keeps of it.
	arrive(flow uint64) (server, payload uint32)
	// end tells whose a connection is that ends now, which depth it needed to survive, and whether it was cut off before.
	end(payload uint32) (server uint32, depth int, gone bool)
	// fail cuts off a server's connections, which the caller counts.
	fail(server uint32)
	// addServer is told of a new server.
	addServer()
}

// New makes a world at time 0 without connections. It panics on a config that contradicts itself.
func New(c Config) *World {
	if (c.Table == nil) == (c.Chooser == nil) || c.Servers < 0 || c.Rate < 0 || c.Durations.IsZero() {
		panic(fmt.Sprintf("flows.New: %+v: want either a table or a chooser, durations, and nothing below 0", c))
	}
	w := &World{
		config: c, gaps: random.New(c.Seed, "arrivals"), lifeOf: random.Keyed(c.Seed, "durations"),
		lives: random.NewSampler(c.Durations.Scaled(second)), queue: event.New(tick(c.Rate, c.Durations)), balance: balance{follow: c.Imbalance},
	}
	if c.Table != nil {
		w.steer = newTableSteerer(w, *c.Table)
	} else {
		w.steer = newChoiceSteerer(w, c.Chooser)
	}
	w.counting = w.inBatches() == nil
	for range c.Servers {
		w.AddServer()
	}
	w.ahead, w.next = w.gaps.Exp(1), math.Inf(1)
	w.SetRate(c.Rate)
	return w
}

// tick is a good one for the queue: long enough for some hundred events, but not so long that many end in the leaf in which they begin, between
// others that are in order.
func tick(rate float64, lives data.Distribution) int64 {
	const most, between = 2048, 16
	tick := min(second, most*second/max(rate, 1))
	for events := rate * tick / second; events > between && lives.At(between/events)*second < tick; events /= 2 {
		tick /= 2
	}
	return int64(tick)
}

// Fill puts as many connections in as there are at a random moment, with what remains of their lives then: the equilibrium of the rate as
// it is. They are given servers one by one, now.
func (w *World) Fill() {
	remaining := random.NewSampler(w.config.Durations.Scaled(second).Remaining())
	remains, count := random.Keyed(w.config.Seed, "remaining"), random.New(w.config.Seed, "fill")
	life := func(flow uint64) int64 { return int64(remaining.At(remains.Float64At(flow))) }
	connections, mean := int64(0), w.rate*second*w.config.Durations.Mean()
	for total := count.Exp(1); total < mean; total += count.Exp(1) {
		connections++
	}
	if s := w.inBatches(); s != nil {
		w.fillBatches(s, connections, life)
		return
	}
	for range connections {
		w.admit(w.now, life(w.flow))
	}
}

// Admit lets a connection begin now that lives for a number of ns, at most the longest of the durations: for arrivals that somebody recorded.
func (w *World) Admit(life int64) { w.admit(w.now, life) }

// RunUntil lets everything happen that happens before a time, in ns.
func (w *World) RunUntil(until int64) {
	if s := w.inBatches(); s != nil {
		w.runBatches(s, until)
	} else {
		w.runEvents(until)
	}
	w.now = max(w.now, until)
}

// admit lets a connection begin.
func (w *World) admit(at, life int64) {
	server, payload := w.steer.arrive(w.flow)
	w.queue.Push(at+life, payload)
	w.flow++
	w.live++
	w.stats.Arrived++
	w.load(server, 1)
}

// settle counts a connection that ends.
func (w *World) settle(server uint32, depth int, gone bool) {
	if gone {
		return
	}
	w.live--
	w.stats.Depths[depth]++
	w.load(server, -1)
}

// load counts that a server has more connections, or fewer.
func (w *World) load(server uint32, more int32) {
	if !w.counting {
		return
	}
	load := w.loads[server]
	w.loads[server] = load + more
	if w.balance.follow {
		w.balance.change(server, load, load+more, w.now)
	}
}

// SetRate changes the arrivals per second from now on. For a table, at most 2^30 may arrive in the longest life.
func (w *World) SetRate(perSecond float64) {
	if longest := w.config.Durations.At(1); w.config.Table != nil && perSecond*longest > maxAge {
		panic(fmt.Sprintf("flows: %g arrivals/s that last up to %g s: a table tells at most %d arrivals apart", perSecond, longest, maxAge))
	}
	if w.rate > 0 {
		w.ahead = (w.next - float64(w.now)) * w.rate
	}
	w.rate, w.gap, w.next = perSecond/second, second/perSecond, math.Inf(1)
	if w.rate > 0 {
		w.next = float64(w.now) + w.ahead/w.rate
	}
}

// AddServer adds an active server without connections, which owns nothing, and returns its number.
func (w *World) AddServer() uint32 {
	server := uint32(len(w.loads))
	w.loads = append(w.loads, 0)
	w.balance.add()
	w.steer.addServer()
	w.SetActive(server, true)
	return server
}

// SetActive reports whether a server counts in the imbalance. One that drains should not. Who gets connections is up to table and chooser.
func (w *World) SetActive(server uint32, active bool) {
	w.balance.set(server, active, w.loads[server], w.now)
}

// Fail cuts a server's connections off now: they are broken. It returns how many they were. The server may come back, empty: that is up to
// table and chooser, as who gets its part is.
func (w *World) Fail(server uint32) int {
	w.wantLoads()
	cut := w.loads[server]
	w.steer.fail(server)
	w.loads[server] = 0
	w.balance.change(server, cut, 0, w.now)
	w.live -= int64(cut)
	w.stats.Cut += int64(cut)
	return int(cut)
}

// Live returns the number of connections.
func (w *World) Live() int64 { return w.live }

// Load returns a server's connections.
func (w *World) Load(server uint32) int32 {
	w.wantLoads()
	return w.loads[server]
}

// Loads returns every server's connections. It is the world's own: read it only, and before the world goes on.
func (w *World) Loads() []int32 {
	w.wantLoads()
	return w.loads
}

// Now returns the time, in ns.
func (w *World) Now() int64 { return w.now }

// Spread returns max/mean - 1 of the active servers' connections as they are now. It looks at every server.
func (w *World) Spread() float64 {
	w.wantLoads()
	most, sum, servers := int32(0), int64(0), 0
	for server, load := range w.loads {
		if w.balance.active[server] {
			most, sum, servers = max(most, load), sum+int64(load), servers+1
		}
	}
	if sum == 0 {
		return 0
	}
	return float64(most)*float64(servers)/float64(sum) - 1
}

// Reset starts the statistics anew. To count what breaks at a steady rate of changes, let changes go on for the longest life first.
func (w *World) Reset() {
	w.stats = Stats{}
	w.balance.reset(w.now)
}

// Stats returns what was counted since the last Reset.
func (w *World) Stats() Stats {
	stats := w.stats
	stats.Ended = stats.Cut
	for _, n := range stats.Depths {
		stats.Ended += n
	}
	depth := 1
	if w.config.Table != nil {
		depth = w.config.Table.Depth
	}
	stats.Broken = stats.BrokenAt(depth)
	stats.Imbalance = w.balance.mean(w.now)
	return stats
}

// Rate returns the arrivals per second.
func (w *World) Rate() float64 { return w.rate * second }
