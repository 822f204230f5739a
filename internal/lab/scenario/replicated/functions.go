package replicated

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants: servers 1 to functions translate addresses, behind as many load balancers; the others are what clients reach through them.
const (
	functions     = 4
	outsides      = 2
	gateways      = 3
	echoPort      = 4000
	publicAddress = "203.0.113.1"
)

// members are the functions that there are at first.
var members = []int{1, 2, 3}

// runFunctions plays the same events twice: with a table that load balancers replicate, in which the way back is found; and by hash, where each function
// has an address of its own, so that the way back needs no load balancer.
func runFunctions(run *scenario.Run) {
	play := func(setup world.Setup, act func(*world.Trial)) {
		setup.NoAgents, setup.Members = true, members
		setup.Topology = world.Topology{LBs: gateways, Servers: make([]world.ServerNode, functions+outsides), Functions: functions, Management: true, Controllers: 1, EtcdMembers: 1}
		for i := functions; i < functions+outsides; i++ {
			setup.Topology.Servers[i].FarMTU = 1500
		}
		run.Trial(setup, act)
	}
	play(world.Setup{Name: "replicated", Gateways: true, Services: []*fleet.Service{functionService("public", publicAddress+"/32", model.AffinityReplicated),
		functionService("gateway", "0.0.0.0/0", model.AffinityReplicated)}}, func(t *world.Trial) { changeFunctions(t, run.Result, true) })
	play(world.Setup{Name: "a function dies", Services: []*fleet.Service{functionService("public", publicAddress+"/32", model.AffinityReplicated),
		functionService("gateway", "0.0.0.0/0", model.AffinityReplicated)}, Cuts: true}, func(t *world.Trial) { loseFunction(t, run.Result) })
	play(world.Setup{Name: "hash", Services: []*fleet.Service{functionService("gateway", "0.0.0.0/0", model.AffinityHash)}, Baseline: true},
		func(t *world.Trial) { changeFunctions(t, run.Result, false) })
}

func functionService(name, destinations string, affinity model.Affinity) *fleet.Service {
	one := &fleet.Service{Service: model.NewService()}
	one.Name, one.Protocol, one.Destinations, one.Affinity, one.Dispatch = name, model.ProtocolAny, model.Prefix{Prefix: netip.MustParsePrefix(destinations)}, affinity, model.DispatchRR
	one.VIP = one.Destinations.Addr()
	if affinity == model.AffinityHash {
		one.Dispatch = model.DispatchMaglev
	}
	return one
}

// changeFunctions is the series of events.
func changeFunctions(t *world.Trial, result *scenario.Result, replicated bool) {
	active := slices.Clone(members)
	on := func(lbs ...int) {
		if replicated {
			awaitRing(t, lbs...)
			t.Routes.AwaitGateways(active, lbs...)
		}
	}
	var cuts powerCuts
	lose := func(lb int, others ...int) { // functions send to the dead load balancer until they notice by themselves
		if !replicated {
			t.Failures.CrashLB(lb)
			return
		}
		cuts.cut(t, lb, active, others)
		on(others...)
	}
	t.Routes.FunctionsBy()
	if replicated {
		t.Routes.BlackholeFunctions()
		t.Fleet.Replicas = model.Replicas{Chain: 2, IdleTimeout: model.Duration(30 * time.Second)}
		t.Rollout.Apply()
		on(1, 2, 3)
	}
	t.Endpoints.StartOutside(echoPort)
	web := t.Network.Outside(1) + ":80"
	running := t.Traffic.Generate(scenario.Downloads(web, 20), scenario.Browsers(web, 20), scenario.Shorts(web, 30), datagramsThrough(t))
	t.Traffic.Busy(running, 200)
	t.Series(running,
		world.Step{What: "add function s4", Do: func() {
			t.Pool.AddServer(4)
			t.Rollout.Apply()
			active = append(active, 4)
			on(1, 2, 3)
		}},
		world.Step{What: "lb1 loses its power", Do: func() { lose(1, 2, 3) }},
		world.Step{What: "remove function s1, whose connections stay", Do: func() { t.Pool.RemoveServer(1); t.Rollout.Apply() }},
		world.Step{What: "lb1 returns", Do: func() { t.Failures.ReturnLB(1); on(1, 2, 3) }},
		world.Step{What: "function s2 is drained", Do: func() { t.Pool.Drain(2); t.Rollout.Apply() }},
		world.Step{What: "lb3 loses its power", Do: func() { lose(3, 1, 2) }},
		world.Step{What: "function s2 gets connections again", Do: func() { t.Pool.Activate(2); t.Rollout.Apply() }})
	if replicated {
		cuts.judge(result)
		result.Expect(t.Rollout.Differs(world.LBName(1)) == nil, "lb1 is behind")
	}
}

// Implementation constants.
const (
	gatewayMax  = time.Second // from a power cut until no function sends to the load balancer: BFD takes 300 to 400 ms, and the route has to be changed
	probesAfter = 5000        // sent after each power cut when all go on without the load balancer
)

// powerCuts are what power cuts of load balancers did to datagrams that go through functions and back all the time. Times are the longest of all.
type powerCuts struct {
	left   time.Duration // from a cut until no function sent to the load balancer
	mended time.Duration // until the others forwarded by a ring without it: those that had to ask it are lost until then
	outage time.Duration // until the last one was sent that is lost
	lost   int
	asked  int // lost of those that were sent when no function sent to the load balancer any more
	after  int // lost of those that were sent when the others went by another ring as well
}

// cut cuts a load balancer's power, and has functions find out.
func (c *powerCuts) cut(t *world.Trial, lb int, functions, others []int) {
	probes := t.Clients.ProbeEcho(netip.MustParseAddrPort(echoOutside(t)))
	defer probes.Stop()
	gatewayLeft, ringChanged, begin := t.Routes.WatchGateways(functions, lb), watchRing(t, lb, others...), time.Now()
	t.Failures.CrashLB(lb)
	left, mended := gatewayLeft(), ringChanged()
	probes.AwaitSent(mended, probesAfter)
	until := time.Now()
	lost, sent, outage := probes.LostBetween(begin, until)
	asked, _, _ := probes.LostBetween(left, until)
	after, _, _ := probes.LostBetween(mended, until)
	c.left, c.mended, c.outage = max(c.left, loadmeter.Between(begin, left)), max(c.mended, loadmeter.Between(begin, mended)), max(c.outage, outage)
	c.lost, c.asked, c.after = c.lost+lost, c.asked+asked, c.after+after
	t.Lab.Progress("%s: functions left %s %d ms after its power cut began, and others went by a ring without it after %d ms; %d of %d datagrams are lost, %d of them sent after the first, %d after both, the last after %d ms",
		t.Setup.Name, world.LBName(lb), left.Sub(begin).Milliseconds(), mended.Sub(begin).Milliseconds(), lost, sent, asked, after, outage.Milliseconds())
}

// judge says what was measured.
func (c *powerCuts) judge(result *scenario.Result) {
	result.Measure("gateway_left_seconds", world.Round(c.left))
	result.Measure("ring_changed_seconds", world.Round(c.mended))
	result.Measure("datagrams_lost_until_seconds", world.Round(c.outage))
	result.Measure("datagrams_lost", float64(c.lost))
	result.Measure("datagrams_lost_after_gateway_left", float64(c.asked))
	result.Measure("datagrams_lost_after_ring_changed", float64(c.after))
	result.Expect(c.left <= gatewayMax, "it has taken functions %v to leave a dead load balancer", c.left)
	result.Expect(c.mended <= missedMax, "it has taken load balancers %v to go on without a dead one", c.mended)
	result.Expect(c.lost > 0, "power cuts have cost no datagram: they were not seen")
}

// loseFunction cuts a function off, and has it switched off: its connections break, and no others.
func loseFunction(t *world.Trial, result *scenario.Result) {
	const dead = 2
	t.Fleet.Replicas = model.Replicas{Chain: 2, IdleTimeout: model.Duration(30 * time.Second)}
	t.Rollout.Apply()
	awaitRing(t, 1, 2, 3)
	t.Endpoints.StartOutside(echoPort)
	running := t.Traffic.Generate(datagramsThrough(t))
	t.Traffic.Until(running, time.Minute, "all flows go on", func(p traffic.Progress) bool { return p.Open == flowsThrough && len(p.OpenByServer) == flowsThrough })
	t.Event("function s2 dies and is switched off", func() {
		script.Check(t.Lab.Space(world.ServerName(dead)).SetLink("eth0", false))
		for _, one := range t.Fleet.Services {
			one.SwitchOff(dead)
		}
		t.Rollout.Apply()
	})
	t.Traffic.Until(running, time.Minute, "its flows have broken", func(p traffic.Progress) bool { return p.Broken > 0 })
	running.Finish(t.Context)
	its, others, kept := 0, 0, 0
	for _, c := range running.Connections {
		port, err := strconv.Atoi(c.Server)
		script.Checkf(err, "read the port of a flow")
		switch of := world.FunctionOf(port); {
		case c.Class == traffic.Completed:
			kept++
		case of == dead:
			its++
		default:
			others++
		}
	}
	t.Lab.Progress("%s: %d flows of the dead function are broken, %d of others, %d go on", t.Setup.Name, its, others, kept)
	result.Expect(its > 0 && others == 0 && kept > its, "%d flows of the dead function are broken, %d of others, %d go on", its, others, kept)
}

// flowsThrough is how many flows of datagrams there are.
const flowsThrough = 150

// datagramsThrough are questions and answers of flows through functions; their servers say by which port they came.
func datagramsThrough(t *world.Trial) traffic.Flow {
	return traffic.Flow{Name: "udp", Target: echoOutside(t), UDP: true, Count: flowsThrough, Concurrent: flowsThrough, PerSecond: 100, Repeat: true,
		Again: 500 * time.Millisecond, Requests: []traffic.Request{{Bytes: 100, Pause: 700 * time.Millisecond}, {Bytes: 900, Pause: 1500 * time.Millisecond}}}
}

// echoOutside is who sends back what comes through functions.
func echoOutside(t *world.Trial) string { return fmt.Sprintf("%s:%d", t.Network.Outside(2), echoPort) }
