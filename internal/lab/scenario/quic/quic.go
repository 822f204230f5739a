// Package quic has HTTP/3 clients whose addresses change, and changes pool, keys and load balancers under their connections (Cheetah IV-D).
package quic

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "quic", Deadline: 6 * time.Minute, Do: runQUIC,
		Promise: "HTTP/3 connections outlive changes of pool, keys, load balancers and of their clients' addresses",
	},
	{
		Name: "quic-clients", Deadline: 4 * time.Minute, Do: runClients,
		Promise: "HTTP/3 connections of Chromium and aioquic outlive changes of their ports",
	},
	{
		Name: "quic-servers", Deadline: 5 * time.Minute, Do: runServers,
		Promise: "connections of unchanged nginx, aioquic and quinn, that make ids by the agent's file, outlive changes of pool, keys and load balancers",
	},
}

const (
	downloads = 40
	moves     = time.Second // between changes of a client's port
	movedMin  = 100
	addedMin  = 20 // connections of a server that was added

	lossPermille = 50 // each way

	floodPerSecond = 2000
	floodMin       = 5000
	floodDelivered = 0.8 // of it that must come through
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
		outcome := run.Trial(setup(one.name, with), func(t *world.Trial) {
			moved = changes(t, func(t *world.Trial) {
				t.Endpoints.StartHTTP3(one.retry, "")
				if !one.retry { // which ends what came early
					t.Traffic.Generate(early(t))
				}
			}, moves, one.migrate)
		})
		run.Result.Measure("moved_"+one.name, float64(moved))
		run.Result.Expect(moved >= movedMin, "%s: clients changed their ports only %d times", one.name, moved)
		run.Result.Expect(outcome.Throughout["download"] >= downloads/2, "%s: only %d downloads lasted from before the first event until after the last",
			one.name, outcome.Throughout["download"])
		firstFlights(run, outcome, !one.retry)
		addedServe(run, outcome)
		for _, verdict := range []string{"forwarded_new", "forwarded_starting", "forwarded_by_cookie"} {
			run.Result.Expect(total(outcome, verdict) > 0, "%s: no packet is counted as %s", one.name, verdict)
		}
	}
	forged := 0
	lossy := run.Trial(setup("loss", service(scenario.VIP4, model.AffinityQUIC, model.DispatchRR)), func(t *world.Trial) { forged = loss(t, run.Result) })
	run.Result.Measure("forged", float64(forged))
	run.Result.Expect(forged >= floodMin, "loss: only %d Initials were forged", forged)
	began := total(lossy, "forwarded_new")
	run.Result.Expect(float64(began) >= floodDelivered*float64(forged), "loss: %d Initials were forged, and %d packets began a connection", forged, began)
	again := total(lossy, "forwarded_starting")
	run.Result.Measure("starting_in_flood", float64(again))
	run.Result.Expect(again >= uint64(lossy.Completed/2), "loss: %d packets found where their connection had begun, of %d connections", again, lossy.Completed)
	firstFlights(run, lossy, false)
	var lost uint64
	for _, losses := range lossy.Losses {
		lost += losses.DroppedRandom
	}
	run.Result.Expect(lost > 0, "loss: nothing was lost")
	hash := setup("hash", service(scenario.VIP4, model.AffinityHash, model.DispatchHash))
	hash.Baseline = true
	run.Trial(hash, func(t *world.Trial) {
		changes(t, func(t *world.Trial) { t.Endpoints.StartHTTP3(false, "") }, moves, false)
	})
}

// early are connections whose first flight has a request, from the second on (RFC 9001 4.6).
func early(t *world.Trial) traffic.Flow {
	return traffic.Flow{Name: "early", Target: t.Fleet.Target(), HTTP3: true, Early: true, Concurrent: 20, PerSecond: 10,
		Requests: []traffic.Request{{Path: world.PathBlob, Bytes: 4000}}}
}

// firstFlights expects ClientHellos of two datagrams, which Go's are by default, and answers to requests that came with the ClientHello.
func firstFlights(run *scenario.Run, outcome world.Result, early bool) {
	run.Result.Measure("long_hellos_"+outcome.Name, float64(outcome.LongClientHellos))
	others := outcome.Attempted - outcome.Flows["early"]
	run.Result.Expect(outcome.LongClientHellos >= others/2, "%s: only %d of %d hellos had a key of ML-KEM and two datagrams", outcome.Name, outcome.LongClientHellos, others)
	if early {
		run.Result.Measure("early_"+outcome.Name, float64(outcome.Early))
		run.Result.Expect(outcome.Early > outcome.Flows["early"]/2, "%s: only %d of %d connections had an answer to their first flight's request",
			outcome.Name, outcome.Early, outcome.Flows["early"])
	}
}

// loss has handshakes and requests over a link that loses packets, ClientHellos of two datagrams among them, of which one comes late; meanwhile others forge
// first packets. It tells how many.
func loss(t *world.Trial, result *scenario.Result) (forged int) {
	t.Endpoints.StartHTTP3(true, "")
	t.Network.Lose(world.ClientNode, "eth0", link.Faults{DropPermille: lossPermille})
	t.Network.Lose(world.RouterNode, world.ClientNode, link.Faults{DropPermille: lossPermille})
	scenario.Bounded(t, result, "loss", func() { forged = forgeInitials(t) })
	return forged
}

func forgeInitials(t *world.Trial) (forged int) {
	running := t.Traffic.Generate(traffic.Flow{
		Name: "exchange", Target: t.Fleet.Target(), HTTP3: true, Count: 150, Concurrent: 15, PerSecond: 30, Move: moves, Requests: []traffic.Request{
			{Path: world.PathBlob, Bytes: 30_000}, {Path: world.PathUpload + "some", Bytes: 30_000, Upload: true}, {Path: world.PathName, Pause: time.Second}},
	})
	outsiders, target := t.Clients.OpenOutsiders(), netip.MustParseAddrPort(t.Fleet.Target())
	defer outsiders.Close()
	outsiders.Flood(floodPerSecond, func(i int) ([]byte, bool) {
		if running.Ended() {
			forged = i
			return nil, false
		}
		return script.Must(frames.Datagram(outsiders.From, outsiders.To, outsiders.Address(), target, initial(t.Random))), true
	})
	running.Wait(t.Context)
	return forged
}

// initial is what looks like a client's first packet: a long header of version 1, ids of its own, and what nobody can decrypt (RFC 9000 17.2.2).
func initial(random *rand.Rand) []byte {
	const datagram, shortest, longest = 1200, 8, 20
	ids := make([]byte, 2+2*longest)
	for i := range ids {
		ids[i] = byte(random.Uint32())
	}
	drawn := shortest + random.IntN(longest-shortest+1)
	ids[0], ids[1+drawn] = byte(drawn), shortest
	packet := slices.Concat([]byte{0xc0, 0, 0, 0, 1}, ids[:2+drawn+shortest], []byte{0})
	rest := datagram - len(packet) - 2
	packet = binary.BigEndian.AppendUint16(packet, uint16(0x4000|rest))
	for range rest {
		packet = append(packet, byte(random.Uint32()))
	}
	return packet
}

func setup(name string, one *fleet.Service) world.Setup {
	return world.Setup{
		Name: name, Services: []*fleet.Service{one}, Members: []int{1, 2, 3, 4}, Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 6)},
	}
}

// addedServe expects the servers that came later to get connections: their checks succeed, too.
func addedServe(run *scenario.Run, outcome world.Result) {
	for _, added := range []string{"s5", "s6"} {
		run.Result.Expect(outcome.ServedBy[added] >= addedMin, "%s: %s, which was added, served only %d connections", outcome.Name, added, outcome.ServedBy[added])
	}
}

// total adds up what all nodes counted by a verdict.
func total(outcome world.Result, verdict string) (packets uint64) {
	for _, counters := range outcome.Counters {
		packets += counters[verdict]
	}
	return packets
}

// changes are those of pool, keys and load balancers under downloads and short connections, and how often clients' ports changed meanwhile.
func changes(t *world.Trial, start func(*world.Trial), moves time.Duration, migrate bool) (moved int) {
	start(t)
	lasting := t.Traffic.Generate(traffic.Flow{
		Name: "download", Target: t.Fleet.Target(), HTTP3: true, Move: moves, Migrate: migrate, Count: downloads, Concurrent: downloads, PerSecond: 40, Repeat: true,
		Requests: []traffic.Request{{Path: world.PathSlow(64 << 10), Bytes: 128 << 10}},
	})
	t.Traffic.Until(lasting, world.Stall, "all downloads have a server", func(p traffic.Progress) bool {
		return p.Served() == downloads
	})
	running := t.Traffic.Generate(
		traffic.Flow{Name: "short", Target: t.Fleet.Target(), HTTP3: true, Concurrent: 50, PerSecond: 25, Requests: []traffic.Request{{Path: world.PathBlob, Bytes: 4000}}},
		traffic.Flow{Name: "upload", Target: t.Fleet.Target(), HTTP3: true, Concurrent: 20, PerSecond: 2, Requests: []traffic.Request{
			{Path: world.PathUpload + "some", Bytes: 200_000, Upload: true}, {Path: world.PathName, Pause: time.Second}}})
	t.Traffic.Busy(running, 40)
	for _, one := range scenario.Changes(t) {
		t.Event(one.What, one.Do)
		t.Traffic.Busy(running, 30)
	}
	return lasting.Now().Moved
}
