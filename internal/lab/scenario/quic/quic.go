// Package quic has HTTP/3 clients whose addresses change, and changes pool, keys and load balancers under their connections (Cheetah IV-D).
package quic

import (
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "quic", Deadline: 6 * time.Minute, Do: runQUIC,
		Promise: "HTTP/3 connections outlive changes of pool, keys, load balancers and of their clients' addresses",
	},
	{
		Name: "quic-servers", Deadline: 5 * time.Minute, Do: runServers,
		Promise: "connections of unchanged nginx and aioquic, that make ids by the agent's file, outlive changes of pool, keys and load balancers",
	},
}

const (
	downloads = 40
	moves     = time.Second // between changes of a client's port
	movedMin  = 100

	lossPermille = 50 // each way
)

// service is one of HTTP/3.
func service(vip string, affinity model.Affinity, dispatch model.Dispatch) *fleet.Service {
	one := fleet.NewService("h3", vip)
	one.Protocol, one.Ports, one.Affinity, one.Dispatch = model.ProtocolUDP, []uint16{443}, affinity, dispatch
	return one
}

func runQUIC(run *scenario.Run) {
	checked := func(s *fleet.Service) { s.Health = world.Checks(model.CheckQUIC) }
	for _, one := range []struct {
		name    string
		vip     string
		with    func(*fleet.Service)
		migrate bool
		retry   bool
	}{
		{"rebinding", scenario.VIP4, checked, false, false},
		{"migration", scenario.VIP6, func(s *fleet.Service) {
			s.QUIC = model.QUIC{Algorithm: model.QUICFourPass, ServerIDLength: 2, NonceLength: 5}
			s.Forward = model.ForwardGUE
		}, true, true},
	} {
		with := service(one.vip, model.AffinityQUIC, model.DispatchRR)
		one.with(with)
		moved := 0
		outcome := run.Trial(setup(one.name, with), func(t *world.Trial) { moved = changes(t, quicGo(one.retry), moves, one.migrate) })
		run.Result.Measure("moved_"+one.name, float64(moved))
		run.Result.Expect(moved >= movedMin, "%s: clients changed their ports only %d times", one.name, moved)
		run.Result.Expect(outcome.Throughout["download"] >= downloads/2, "%s: only %d downloads lasted from before the first event until after the last",
			one.name, outcome.Throughout["download"])
		for _, verdict := range []string{"forwarded_new", "forwarded_starting", "forwarded_by_cookie"} {
			run.Result.Expect(total(outcome, verdict) > 0, "%s: no packet is counted as %s", one.name, verdict)
		}
	}
	lossy := run.Trial(setup("loss", service(scenario.VIP4, model.AffinityQUIC, model.DispatchRR)), loss)
	var lost uint64
	for _, losses := range lossy.Losses {
		lost += losses.DroppedRandom
	}
	run.Result.Expect(lost > 0, "loss: nothing was lost")
	hash := setup("hash", service(scenario.VIP4, model.AffinityHash, model.DispatchHash))
	hash.Baseline = true
	run.Trial(hash, func(t *world.Trial) { changes(t, quicGo(false), moves, false) })
}

// loss has handshakes and requests over a link that loses packets: hellos of two datagrams among them, of which one comes late.
func loss(t *world.Trial) {
	t.StartHTTP3(true)
	t.Lose(world.ClientNode, "eth0", link.Faults{DropPermille: lossPermille})
	t.Lose(world.RouterNode, world.ClientNode, link.Faults{DropPermille: lossPermille})
	t.Generate(traffic.Flow{
		Name: "exchange", Target: t.Target(), HTTP3: true, Count: 150, Concurrent: 15, PerSecond: 30, Move: moves, Requests: []traffic.Request{
			{Path: world.PathBlob, Bytes: 30_000}, {Path: world.PathUpload + "some", Bytes: 30_000, Upload: true}, {Path: world.PathName, Pause: time.Second}},
	}).Wait(t.Context)
}

func setup(name string, one *fleet.Service) world.Setup {
	return world.Setup{
		Name: name, Services: []*fleet.Service{one}, Members: []int{1, 2, 3, 4}, Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 6)},
	}
}

// total adds up what all nodes counted by a verdict.
func total(outcome world.Result, verdict string) (packets uint64) {
	for _, counters := range outcome.Counters {
		packets += counters[verdict]
	}
	return packets
}

// quicGo starts servers on quic-go.
func quicGo(retry bool) func(*world.Trial) {
	return func(t *world.Trial) { t.StartHTTP3(retry) }
}

// changes are those of pool, keys and load balancers under downloads and short connections, and how often clients' ports changed meanwhile.
func changes(t *world.Trial, start func(*world.Trial), moves time.Duration, migrate bool) (moved int) {
	start(t)
	lasting := t.Generate(traffic.Flow{
		Name: "download", Target: t.Target(), HTTP3: true, Move: moves, Migrate: migrate, Count: downloads, Concurrent: downloads, PerSecond: 40, Repeat: true,
		Requests: []traffic.Request{{Path: world.PathSlow(64 << 10), Bytes: 128 << 10}},
	})
	t.Until(lasting, world.Stall, "all downloads have a server", func(p traffic.Progress) bool {
		served := 0
		for _, open := range p.OpenByServer {
			served += open
		}
		return served == downloads
	})
	running := t.Generate(
		traffic.Flow{Name: "short", Target: t.Target(), HTTP3: true, Concurrent: 50, PerSecond: 25, Requests: []traffic.Request{{Path: world.PathBlob, Bytes: 4000}}},
		traffic.Flow{Name: "upload", Target: t.Target(), HTTP3: true, Concurrent: 20, PerSecond: 2, Requests: []traffic.Request{
			{Path: world.PathUpload + "some", Bytes: 200_000, Upload: true}, {Path: world.PathName, Pause: time.Second}}})
	t.Busy(running, 40)
	for _, one := range []world.Step{
		{What: "add servers s5 and s6", Do: func() { t.AddServer(5); t.AddServer(6); t.Apply() }},
		{What: "drain servers s1 and s2", Do: func() { t.Drain(1); t.Drain(2); t.Apply() }},
		{What: "kill load balancer lb1", Do: func() { t.CrashLB(1) }},
		{What: "add the next key", Do: func() { t.AddKey(2); t.Apply() }},
		{What: "lb1 returns", Do: func() { t.ReturnLB(1) }},
		{What: "use the next key", Do: func() { t.Fleet.Keys.Current = 2; t.Apply() }},
		{What: "remove servers s1 and s2", Do: func() { t.RemoveServer(1); t.RemoveServer(2); t.Apply() }},
		{What: "kill load balancer lb2", Do: func() { t.CrashLB(2) }},
		{What: "drain server s3", Do: func() { t.Drain(3); t.Apply() }},
		{What: "lb2 returns", Do: func() { t.ReturnLB(2) }},
	} {
		t.Event(one.What, one.Do)
		t.Busy(running, 30)
	}
	return lasting.Now().Moved
}
