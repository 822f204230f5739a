package tlsclient

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"gonum.org/v1/gonum/stat"
)

const (
	reportInterval = 200 * time.Millisecond
	maxMoves       = 16
	evenInterval   = 10 * time.Millisecond
)

// group is a group that runs.
type group struct {
	*Group
	begin   time.Time
	mutex   sync.Mutex
	outcome Outcome
	times   []float64 // ms, of requests with State
	spans   []span
}

// span is from when a connection began until it was answered.
type span struct {
	begin, end time.Duration
	server     string
}

// client is one of many.
type client struct {
	*group
	random *rand.Rand
	begun  int       // sessions, by which they differ
	due    time.Time // with State: when the next request is
	late   bool      // that request is due after the end
}

// visit is what a client has seen in one connection.
type visit struct {
	Answer
	resumed, retried, early bool
}

// Run has clients begin and resume sessions until all have ended, or ctx has, and reports on a line now and then what
// they have seen, by the names of their groups. The plan is on in.
func Run(ctx context.Context, in io.Reader, out io.Writer) error {
	var plan Plan
	if err := json.NewDecoder(in).Decode(&plan); err != nil {
		return fmt.Errorf("read the plan of TLS clients: %w", err)
	}
	groups := map[string]*group{}
	var all sync.WaitGroup
	stream := uint64(0)
	for i := range plan.Groups {
		g := &group{Group: &plan.Groups[i], begin: time.Now(), outcome: Outcome{
			Moved: map[string]int{}, Broken: map[string]int{}, Servers: map[string]int{}, Versions: map[string]int{}, Proxies: map[string]int{}}}
		groups[g.Name] = g
		for range g.Clients {
			c := &client{group: g, random: rand.New(rand.NewPCG(plan.Seed, stream)), begun: int(stream), due: g.begin}
			stream++
			all.Go(func() { c.run(ctx) })
		}
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	for {
		select {
		case <-ended:
			for _, g := range groups {
				g.outcome.Uneven = unevenness(g.spans)
			}
			return report(out, groups)
		case <-time.After(reportInterval):
			if err := report(out, groups); err != nil {
				return err
			}
		}
	}
}

func report(out io.Writer, groups map[string]*group) error {
	outcomes := map[string]*Outcome{}
	for name, g := range groups {
		g.mutex.Lock()
		defer g.mutex.Unlock()
		outcomes[name] = &g.outcome
		if len(g.times) > 0 {
			sorted := slices.Sorted(slices.Values(g.times))
			g.outcome.PerSecond = float64(len(sorted)) / time.Since(g.begin).Seconds()
			g.outcome.MeanMS, g.outcome.P99MS = stat.Mean(sorted, nil), stat.Quantile(0.99, stat.Empirical, sorted, nil)
		}
	}
	return json.NewEncoder(out).Encode(outcomes)
}

// run begins one session after another.
func (c *client) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil && (c.Sessions == 0 || n < c.Sessions) && !c.over() && !c.late; n++ {
		c.begun++
		c.session(ctx)
	}
}

// over reports whether a client's time is over.
func (g *group) over() bool { return g.State != nil && time.Since(g.begin) >= g.State.For }

// session begins a session and resumes it, and notes what was seen.
func (c *client) session(ctx context.Context) {
	version, before := c.version(), ""
	err := c.visits(ctx, version, func(v visit) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.outcome.count(v, version, before)
		before = v.Server
	})
	if err != nil {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.outcome.Connections++
		c.outcome.Broken[err.Error()]++
	}
}

// took notes how long it took until a connection that began then was answered, or ended.
func (g *group) took(begin time.Time) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.outcome.Slowest = max(g.outcome.Slowest, time.Since(begin))
}

// answered notes that the request which was due has been.
func (c *client) answered(begin time.Time, server string) {
	if c.State != nil {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.times = append(c.times, float64(time.Since(c.due).Microseconds())/1000)
		c.spans = append(c.spans, span{begin.Sub(c.begin), time.Since(c.begin), server})
	}
}

// unevenness is the coefficient of variation of how many connections a server has at a time, of all servers and times; 0: there are none.
func unevenness(spans []span) float64 {
	counts, moments := map[string][]float64{}, 0
	for _, s := range spans {
		moments = max(moments, int(s.end/evenInterval)+1)
	}
	for _, s := range spans {
		if counts[s.server] == nil {
			counts[s.server] = make([]float64, moments)
		}
		for at := (s.begin + evenInterval - 1) / evenInterval; at*evenInterval < s.end; at++ {
			counts[s.server][at]++
		}
	}
	all := slices.Concat(slices.Collect(maps.Values(counts))...)
	if mean, deviation := stat.PopMeanStdDev(all, nil); mean > 0 {
		return deviation / mean
	}
	return 0
}

// count adds a connection; before is the server of the one before in its session, empty: it was the first.
func (o *Outcome) count(v visit, version uint16, before string) {
	o.Connections++
	o.Servers[v.Server]++
	if v.Proxy != "" {
		o.Proxies[v.Proxy]++
	}
	if v.Forgotten {
		o.Forgotten++
	}
	if v.resumed {
		o.Resumed++
	}
	if v.retried {
		o.Retried++
	}
	if v.early {
		o.Early++
	}
	switch before {
	case v.Server:
	case "":
		o.Versions[versionName(version)]++
	default:
		o.Moved[before]++
		if len(o.Moves) < maxMoves {
			o.Moves = append(o.Moves, fmt.Sprintf("%s %s: %s to %s, resumed: %t",
				time.Now().Format(time.TimeOnly), versionName(version), before, v.Server, v.resumed))
		}
		if v.resumed {
			o.Elsewhere++
		}
	}
}
