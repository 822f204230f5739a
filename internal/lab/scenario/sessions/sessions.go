// Package sessions has clients resume TLS sessions while pool, keys and load balancers change (Yuz).
package sessions

import (
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/tlsclient"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "sessions", Deadline: 5 * time.Minute, Do: run,
		Promise: "all connections of a TLS session reach one server while pool, keys and load balancers change",
	},
	{
		Name: "sessions-software", Deadline: 10 * time.Minute, Do: runSoftware,
		Promise: "so do those of curl, OpenSSL and Python with unchanged nginx, Apache, HAProxy and Dovecot (IMAPS)",
	},
	{
		Name: "sessions-nginx", Deadline: 5 * time.Minute, Do: runNginx,
		Promise: "so do those of curl, OpenSSL and Python with unchanged nginx",
	},
	{
		Name: "sessions-translation", Deadline: 2 * time.Minute, Do: runTranslation,
		Promise: "connections of services with session: tls come to be at servers whose kernel translates others, as Docker has it; where they do not, the agent says so",
	},
	{
		Name: "session-loss", Deadline: 5 * time.Minute, Do: runLoss,
		Promise: "ClientHellos of 1 to 3 segments reach their session's server whichever of them is lost, doubled or overtaken; longer ones reach one",
	},
	{
		Name: "sessions-chromium", Deadline: 5 * time.Minute, Do: runChromium,
		Promise: "pages of Chromium, whose hellos take two segments, resume their sessions at nginx",
	},
}

const (
	atOnce     = 40
	longest    = 3 * time.Second // of a connection
	resumes    = 8               // connections of a session after its first
	between    = 40              // connections, between two events
	minResumed = 0.7             // of connections, that resume a session at least
	removed    = 3               // server, at the end
	patience   = 10              // checks that fail in a row

	floodSYNs      = 30_000
	floodPerSecond = 10_000
	floodDelivered = 0.8 // of it that must come through: queues are short
)

var lbs = []string{world.LBName(1), world.LBName(2)}

func service(vip string, with func(*fleet.Service)) *fleet.Service {
	one := fleet.NewService("web", vip)
	one.Ports, one.Dispatch, one.Session = []uint16{443}, model.DispatchRR, model.SessionTLS
	one.Health = world.Checks(model.CheckTCP)
	one.Health.Fall = patience // sessions leave a server that is not healthy, and no server is but for the machine's load
	if with != nil {
		with(one)
	}
	return one
}

func run(run *scenario.Run) {
	for _, one := range []struct {
		name, vip string
		retries   bool
		with      func(*fleet.Service)
	}{
		{"ipip", scenario.VIP4, false, nil},
		{"gue and ipv6", scenario.VIP6, true, func(s *fleet.Service) { s.Forward, s.Dispatch = model.ForwardGUE, model.DispatchP2C }},
	} {
		seen := map[string]tlsclient.Outcome{}
		outcome := run.Uncounted(setup(one.name, service(one.vip, one.with)), func(t *world.Trial) {
			t.Endpoints.StartTLS(true, one.retries)
			seen = changes(t, between, func(clients *world.Sessions) {
				if one.vip == scenario.VIP4 {
					flood(t, run.Result, clients, one.name)
				}
			}, clientsOf(one.name, t.Fleet.Target(), atOnce))
		})
		judge(run, outcome, seen)
		retried := seen[one.name].Retried
		run.Result.Measure("retried_"+one.name, float64(retried))
		run.Result.Expect(one.retries == (retried > 0), "%s: %d connections had a HelloRetryRequest", one.name, retried)
		run.Result.Expect(total(outcome, "held_hello") > 0, "%s: no segment of a hello was held", one.name)
	}
	seen := map[string]tlsclient.Outcome{}
	outcome := run.Uncounted(setup("cookie", service(scenario.VIP4, func(s *fleet.Service) { s.Session = model.SessionNone })), func(t *world.Trial) {
		t.Endpoints.StartTLS(false, false)
		clients := t.Clients.StartTLS(clientsOf("cookie", t.Fleet.Target(), atOnce))
		clients.More(5 * between)
		seen = clients.End()
	})
	count(run, outcome, seen)
	moved := len(seen["cookie"].Moved)
	run.Result.Measure("sessions_moved_cookie", float64(moved))
	run.Result.Expect(moved > 0, "without session: tls no session moved: the trials before prove nothing")
}

// clientsOf are Go's clients of a service.
func clientsOf(name, target string, count int) tlsclient.Group {
	return tlsclient.Group{Name: name, Target: target, Clients: count, Resumes: resumes, Longest: longest}
}

func setup(name string, services ...*fleet.Service) world.Setup {
	return world.Setup{Name: name, Services: services, Members: []int{1, 2, 3, 4}, Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 5)}}
}

// count adds what clients have seen to the result.
func count(run *scenario.Run, outcome world.Result, seen map[string]tlsclient.Outcome) {
	outcome.Broken = 0
	for name, of := range seen {
		broken := of.BrokenConnections()
		outcome.Attempted += of.Connections
		outcome.Broken += broken
		run.Result.Measure("resumed_"+name, float64(of.Resumed))
		run.Result.Expect(broken == 0, "%s: %d of %d connections broken: %v", name, broken, of.Connections, of.Broken)
		run.Result.Expect(of.Versions["TLS 1.2"] > 0 && of.Versions["TLS 1.3"] > 0, "%s: sessions of %v", name, of.Versions)
	}
	outcome.Completed = outcome.Attempted - outcome.Broken
	run.Result.AddTrial(outcome, false)
}

// judge counts, and expects connections to be at their session's server, but for those of the server that was removed.
func judge(run *scenario.Run, outcome world.Result, seen map[string]tlsclient.Outcome) {
	count(run, outcome, seen)
	for name, of := range seen {
		moved := 0
		for server, n := range of.Moved {
			if server != world.ServerName(removed) {
				moved += n
			}
		}
		run.Result.Measure("connections_"+name, float64(of.Connections))
		run.Result.Measure("moved_"+name, float64(moved))
		run.Result.Expect(moved == 0, "%s: %d of %d connections reached another server than their session's: %q", name, moved, of.Connections, of.Moves)
		run.Result.Expect(float64(of.Resumed) >= minResumed*float64(of.Connections), "%s: only %d of %d connections resumed a session", name, of.Resumed, of.Connections)
	}
	for _, verdict := range []string{"answered_syn", "forwarded_by_session", "forwarded_new", "forwarded_by_cookie"} {
		run.Result.Expect(total(outcome, verdict) > 0, "%s: no packet is counted as %s", outcome.Name, verdict)
	}
}

func total(outcome world.Result, verdict string) (packets uint64) {
	for _, counters := range outcome.Counters {
		packets += counters[verdict]
	}
	return packets
}

// flood sends SYNs of clients that do not exist, while others' connections begin and end.
func flood(t *world.Trial, result *scenario.Result, clients *world.Sessions, name string) {
	outsiders, target := t.Clients.OpenOutsiders(), netip.MustParseAddrPort(t.Fleet.Target())
	defer outsiders.Close()
	before, connections := script.Must(t.Counters.Verdicts(lbs...)), clients.Now()[name].Connections
	scenario.Bounded(t, result, "flood", func() {
		outsiders.Flood(floodPerSecond, func(i int) ([]byte, bool) {
			syn := frames.Segment{From: outsiders.From, To: outsiders.To, Client: outsiders.Address(), Service: target, SYN: true,
				Sequence: t.Random.Uint32(), Value: t.Random.Uint32()}
			return script.Must(syn.Frame()), i < floodSYNs
		})
	})
	began := clients.Now()[name].Connections - connections
	result.Measure("began_in_flood", float64(began))
	result.Expect(began > 0, "no connection began in the flood")
	answered := script.Must(t.Counters.Verdicts(lbs...))["answered_syn"] - before["answered_syn"]
	result.Measure("answered_in_flood", float64(answered))
	result.Expect(float64(answered) >= floodDelivered*floodSYNs, "of %d SYNs only %d were answered", floodSYNs, answered)
}

// changes are those of pool, keys and load balancers, between which each of the clients makes some connections. Before them comes what else is to happen.
func changes(t *world.Trial, between int, before func(clients *world.Sessions), of ...tlsclient.Group) map[string]tlsclient.Outcome {
	clients := t.Clients.StartTLS(of...)
	clients.More(between)
	before(clients)
	for _, one := range []world.Step{
		{What: "add server s5", Do: func() { t.Pool.AddServer(5); t.Rollout.Apply() }},
		{What: "drain server s1", Do: func() { t.Pool.Drain(1); t.Rollout.Apply() }},
		{What: "kill load balancer lb1", Do: func() { t.Failures.CrashLB(1) }},
		{What: "add the next key", Do: func() { t.Pool.AddKey(2); t.Rollout.Apply() }},
		{What: "lb1 returns", Do: func() { t.Failures.ReturnLB(1) }},
		{What: "use the next key", Do: func() { t.Fleet.Keys.Current = 2; t.Rollout.Apply() }},
		{What: "kill load balancer lb2", Do: func() { t.Failures.CrashLB(2) }},
		{What: "drain server s2", Do: func() { t.Pool.Drain(2); t.Rollout.Apply() }},
		{What: "lb2 returns", Do: func() { t.Failures.ReturnLB(2) }},
		{What: "remove server s3", Do: func() { t.Pool.RemoveServer(removed); t.Rollout.Apply() }},
	} {
		t.Event(one.What, one.Do)
		clients.More(between)
	}
	return clients.End()
}
