// Package benefit measures what session persistence is good for: an application whose sessions have a state (Yuz IV-B).
package benefit

import (
	"fmt"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/stateful"
	"github.com/ballast-lb/ballast/internal/lab/process/tlsclient"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "session-benefit", Deadline: 15 * time.Minute, Do: func(run *scenario.Run) { with(run, (*measurement).measure) },
		Promise: "an application that keeps sessions in its memory, by session: tls, against one with Redis, and proxies with sticky sessions",
	},
	{
		Name: "session-sweep", Deadline: 30 * time.Minute, Do: func(run *scenario.Run) { with(run, (*measurement).sweep) },
		Promise: "the more requests a session has, and the larger its state is, the more session: tls carries against Redis; how even its servers' load is",
	},
}

// The paper has 48 servers of one core, eight cores of the balancer and eight of the database: a sixth each.
const (
	servers     = 4
	serverCPUs  = 0.15
	backendCPUs = servers * serverCPUs / 6 // of Redis, and of each proxy. The kernel forwards without such a limit

	clientsAtOnce = 32
	requests      = 10 // of a session
	small         = 16 << 10
	large         = 1 << 20 // the paper's

	repetitions = 3
	span        = 4 * time.Second // of a measurement
	share       = 0.7             // of what the slowest carries: the rate that times are compared at

	plainPort, nginxPort, haproxyPort = 8081, 8443, 8444
)

// system is one way to have sessions.
type system struct {
	name, target string
	proxy        string // that answers must name
	redis        bool   // that must be asked
	session      bool   // by which load balancers must forward
}

// load is what clients do.
type load struct {
	name     string
	requests int // of a session
	clients  int // at once
	state    tlsclient.State
}

// usual is the load of most measurements.
func usual(name string, state tlsclient.State) load {
	return load{name, requests, clientsAtOnce, state}
}

// cell is what was measured of a system.
type cell struct{ perSecond, meanMS, p99MS, uneven []float64 }

func newService(name, vip string, session model.Session) *fleet.Service {
	one := fleet.NewService(name, vip)
	one.Ports, one.Dispatch, one.Session = []uint16{443}, model.DispatchRR, session
	return one
}

// with starts all systems, and has them measured.
func with(run *scenario.Run, measure func(*measurement)) {
	redis := newService("redis", "198.51.100.10", model.SessionNone)
	memory := newService("memory", "198.51.100.11", model.SessionTLS)
	scattered := newService("scattered", "198.51.100.12", model.SessionNone)
	members := []int{1, 2, 3, 4}
	what := world.Setup{Name: "benefit", Services: []*fleet.Service{redis, memory, scattered}, Members: members,
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, servers+1)}}
	outcome := run.Uncounted(what, func(t *world.Trial) {
		m := &measurement{run: run, t: t, cells: map[string]*cell{}}
		m.start(redis, memory, scattered)
		measure(m)
	})
	run.Result.AddTrial(outcome, false)
}

// measurement is one under way.
type measurement struct {
	run     *scenario.Run
	t       *world.Trial
	systems []system
	redis   func() uint64 // commands that it has carried out
	cells   map[string]*cell
}

func (m *measurement) start(redis, memory, scattered *fleet.Service) {
	t := m.t
	address := t.Foreign.StartRedis(servers+1, backendCPUs)
	m.redis = func() uint64 { return t.Foreign.RedisCommands(servers+1, address) }
	key := fleet.RandomKey(t.Random)
	tickets := slices.Concat(key[:], key[:])
	t.Foreign.StartStateful(servers, serverCPUs,
		stateful.Options{Address: redis.Target(), TLS: true, TicketKey: tickets, Redis: address.String()},
		stateful.Options{Address: memory.Target(), TLS: true, Tickets: memory.Name},
		stateful.Options{Address: scattered.Target(), TLS: true, TicketKey: tickets},
		stateful.Options{Address: fmt.Sprintf("0.0.0.0:%d", plainPort)})
	certificate := t.Foreign.Certificate()
	m.systems = []system{
		{name: "redis", target: redis.Target(), redis: true},
		{name: "session", target: memory.Target(), session: true},
		{name: "nginx", target: t.Foreign.StartProxy("nginx", nginxPort, servers, plainPort, backendCPUs, certificate), proxy: "nginx"},
		{name: "haproxy", target: t.Foreign.StartProxy("haproxy", haproxyPort, servers, plainPort, backendCPUs, certificate), proxy: "haproxy"},
	}
	// Without either, states are lost: that is what all of them are for.
	seen := m.requests(scattered.Target(), usual("", tlsclient.State{For: span, Bytes: small}))
	m.run.Result.Measure("scattered_forgotten", float64(seen.Forgotten))
	m.run.Result.Expect(seen.Forgotten > 0, "states in memory are not lost without session: tls: the application proves nothing")
}

func (m *measurement) measure() {
	for range repetitions { // one after the other, so that all meet the same machine
		for _, one := range m.systems {
			m.once(one, usual("most", tlsclient.State{Bytes: small}))
		}
	}
	slowest := 0.0
	for _, one := range m.systems {
		if most := m.median(one, "most").perSecond; slowest == 0 || most < slowest {
			slowest = most
		}
	}
	m.run.Result.Measure("offered_per_second", share*slowest)
	for range repetitions {
		for _, one := range m.systems {
			m.once(one, usual("offered", tlsclient.State{Bytes: small, PerSecond: share * slowest}))
		}
	}
	for range repetitions {
		for _, one := range m.systems {
			m.once(one, usual("large", tlsclient.State{Bytes: large}))
		}
	}
	for _, load := range []string{"most", "offered", "large"} {
		for _, one := range m.systems {
			m.compare(load, one, m.median(one, load), m.median(m.systems[1], load))
		}
	}
}

// compare measures a system and what session: tls is to it: how many times as many requests are answered, or at the same rate, how much of the time they take.
func (m *measurement) compare(load string, one system, is, session medians) {
	name, result := load+"_"+one.name, m.run.Result
	result.Measure(name+"_per_second", is.perSecond)
	result.Measure(name+"_mean_ms", is.meanMS)
	result.Measure(name+"_p99_ms", is.p99MS)
	switch {
	case one.session:
	case load == "offered":
		result.Measure("offered_mean_of_session_to_"+one.name, session.meanMS/is.meanMS)
		result.Measure("offered_p99_of_session_to_"+one.name, session.p99MS/is.p99MS)
	default:
		result.Measure(load+"_of_session_to_"+one.name, session.perSecond/is.perSecond)
		result.Expect(load != "large" || session.perSecond > is.perSecond, "with states of %d bytes %s carries %.0f requests/s, and session: tls %.0f", large, one.name,
			is.perSecond, session.perSecond)
	}
}

// requests has clients make requests, and returns what they have seen.
func (m *measurement) requests(target string, l load) tlsclient.Outcome {
	group := tlsclient.Group{Name: "requests", Target: target, TLS13: true, Clients: l.clients, Resumes: l.requests - 1, State: &l.state}
	return m.t.Clients.StartTLS(group).Wait()[group.Name]
}

// once measures one system, and expects that it was what it is called.
func (m *measurement) once(one system, l load) {
	l.state.For = m.run.Length(span)
	commands, forwarded := m.redis(), m.t.Counters.Counted("forwarded_by_session")
	seen := m.requests(one.target, l)
	answered := seen.Answered()
	commands, forwarded = m.redis()-commands, m.t.Counters.Counted("forwarded_by_session")-forwarded
	name, result := one.name+", "+l.name, m.run.Result
	m.run.Progress("%s: %d requests, %.0f/s, mean %.1f ms, p99 %.1f ms, %d resumed, %d commands of Redis, %d forwarded by session", name, answered, seen.PerSecond,
		seen.MeanMS, seen.P99MS, seen.Resumed, commands, forwarded)
	result.Expect(len(seen.Broken) == 0 && answered > 0, "%s: %d requests, failed: %v", name, answered, seen.Broken)
	result.Expect(seen.Forgotten == 0, "%s: %d of %d requests met no state or an old one", name, seen.Forgotten, answered)
	result.Expect(len(seen.Servers) == servers, "%s: served by %v", name, seen.Servers)
	result.Expect(one.redis == (commands >= uint64(2*answered)) && (one.redis || commands <= 2), "%s: %d commands of Redis", name, commands)
	result.Expect(one.session && forwarded >= uint64(seen.Resumed) || !one.session && forwarded == 0, "%s: %d forwarded by session", name, forwarded)
	result.Expect(l.requests == 1 || seen.Resumed > 0, "%s: no session was resumed", name)
	result.Expect(one.proxy == "" && len(seen.Proxies) == 0 || seen.Proxies[one.proxy] == answered, "%s: %d by %v", name, answered, seen.Proxies)
	of := m.cells[one.name+l.name]
	if of == nil {
		of = &cell{}
		m.cells[one.name+l.name] = of
	}
	of.perSecond, of.meanMS, of.p99MS = append(of.perSecond, seen.PerSecond), append(of.meanMS, seen.MeanMS), append(of.p99MS, seen.P99MS)
	of.uneven = append(of.uneven, seen.Uneven)
}

// medians of the repetitions.
type medians struct{ perSecond, meanMS, p99MS, uneven float64 }

func (m *measurement) median(one system, load string) medians {
	of := m.cells[one.name+load]
	return medians{scenario.Median(of.perSecond), scenario.Median(of.meanMS), scenario.Median(of.p99MS), scenario.Median(of.uneven)}
}
