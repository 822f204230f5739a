package lb

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// localTable is a change of a service to affinity local-table and a dispatch policy.
func localTable(dispatch model.Dispatch) func(*model.Service) {
	return func(s *model.Service) { s.Affinity, s.Dispatch = model.AffinityLocal, dispatch }
}

func TestTheLocalTableRemembersWhereASYNWent(t *testing.T) {
	for _, dispatch := range policies[:model.DispatchChoices] {
		for _, vip := range []netip.Addr{vip4, vip6} {
			w := newWorld(t, serviceOf("web", vip, localTable(dispatch)))
			for n := range 2 {
				f := flowTo(vip, 443, n)
				w.checkVerdict(f.frame(f.tcp(ack, timestamps(1, 2), nil)), lbVerdictFORWARDED_UNKNOWN)
				got, want := w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW)
				server := want.serverOf(got.frame)
				for _, options := range [][]byte{timestamps(1, 0xdeadbeef), nil, {8, 3, 1}} { // whatever it carries
					for _, flags := range []byte{ack, syn, psh | ack, fin | ack} { // SYNs that are sent again, too
						got, want = w.checkVerdict(f.frame(f.tcp(flags, options, []byte("data"))), lbVerdictFORWARDED_BY_LOCAL_TABLE)
						if want.serverOf(got.frame) != server {
							t.Fatalf("%s: went to server %d after %d", dispatch, want.serverOf(got.frame), server)
						}
					}
				}
			}
		}
	}
}

func TestThePacketsThatTheLocalTableCountsAreCountedOnce(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, localTable(model.DispatchMaglev)))
	f := flowTo(vip4, 443, 1)
	w.checkVerdict(f.frame(f.tcp(syn, nil, make([]byte, 1600))), lbVerdictANSWERED_TOO_BIG)
	w.checkVerdict(f.frame(f.tcp(ack, nil, nil)), lbVerdictFORWARDED_BY_LOCAL_TABLE)
	w.checkVerdict(f.frame(f.tcp(ack, nil, make([]byte, 1600))), lbVerdictANSWERED_TOO_BIG)
	var key [24]byte
	var entry struct {
		ID, Packets, Bytes uint64
		First, Last        uint32
	}
	if entries := w.lb.objects.LocalConnections.Iterate(); !entries.Next(&key, &entry) || entry.Packets != 3 {
		t.Errorf("%+v (%v), want 3 packets", entry, entries.Err())
	}
}

func TestARSTEndsWhatTheLocalTableKnows(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, localTable(model.DispatchMaglev)))
	f := flowTo(vip4, 443, 1)
	w.checkVerdict(f.frame(f.tcp(syn, nil, nil)), lbVerdictFORWARDED_NEW)
	w.checkVerdict(f.frame(f.tcp(rst, nil, nil)), lbVerdictFORWARDED_BY_LOCAL_TABLE)
	w.checkVerdict(f.frame(f.tcp(rst, nil, nil)), lbVerdictFORWARDED_UNKNOWN)
	w.checkVerdict(f.frame(f.tcp(ack, nil, nil)), lbVerdictFORWARDED_UNKNOWN)
}

func TestTheLocalTableTellsPortsAndServicesApart(t *testing.T) {
	other := netip.MustParseAddr("198.51.100.11")
	w := newWorld(t, serviceOf("a", vip4, localTable(model.DispatchRR)), serviceOf("b", other, localTable(model.DispatchRR)))
	f := flowTo(vip4, 443, 1)
	w.checkVerdict(f.frame(f.tcp(syn, nil, nil)), lbVerdictFORWARDED_NEW)
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(vip4, 80), netip.AddrPortFrom(other, 443)} {
		g := flow{f.client, to}
		w.checkVerdict(g.frame(g.tcp(ack, nil, nil)), lbVerdictFORWARDED_UNKNOWN)
	}
}

func TestUDPHasALocalTableToo(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, udpService("dns", vip, localTable(model.DispatchRR)))
		for n := range 6 {
			f := flowTo(vip, 53, n)
			datagram := ethernet(0, ipPacket(f.client.Addr(), vip, 17, f.udp([]byte("question"))))
			got, want := w.checkVerdict(datagram, lbVerdictFORWARDED_NEW)
			server := want.serverOf(got.frame)
			for range 3 {
				got, want = w.checkVerdict(datagram, lbVerdictFORWARDED_BY_LOCAL_TABLE)
				if want.serverOf(got.frame) != server {
					t.Fatal("went astray")
				}
			}
		}
	}
}

func TestTheLocalTableKeepsConnectionsOfServersThatTakeNoNewOnes(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, localTable(model.DispatchRR)))
	servers := map[int]uint16{}
	for n := range 9 {
		f := flowTo(vip4, 443, n)
		got, want := w.checkVerdict(f.frame(f.tcp(syn, nil, nil)), lbVerdictFORWARDED_NEW)
		servers[n] = want.serverOf(got.frame)
	}
	for _, change := range []func(*plan.Service){
		func(s *plan.Service) { s.Servers[1].State = model.StateDraining },
		func(s *plan.Service) { s.Down = map[uint16]bool{3: true} },
		func(s *plan.Service) {
			s.Removed, s.Servers = []model.Server{s.Servers[1]}, append(s.Servers[:1:1], s.Servers[2])
		},
	} {
		w.update(func(want *plan.Want) { change(service(want, "web")) })
		for n := range 9 {
			f := flowTo(vip4, 443, n)
			got, want := w.checkVerdict(f.frame(f.tcp(ack, nil, nil)), lbVerdictFORWARDED_BY_LOCAL_TABLE)
			if want.serverOf(got.frame) != servers[n] {
				t.Fatal("went astray")
			}
		}
	}
	w.update(func(want *plan.Want) { service(want, "web").Removed = nil })
	for n := range 9 {
		f := flowTo(vip4, 443, n)
		verdict := lbVerdictFORWARDED_BY_LOCAL_TABLE
		if servers[n] == 2 {
			verdict = lbVerdictFORWARDED_UNKNOWN
		}
		w.checkVerdict(f.frame(f.tcp(ack, nil, nil)), verdict)
		if servers[n] == 2 { // and its server gets a successor
			w.checkVerdict(f.frame(f.tcp(syn, nil, nil)), lbVerdictFORWARDED_NEW)
			w.checkVerdict(f.frame(f.tcp(ack, nil, nil)), lbVerdictFORWARDED_BY_LOCAL_TABLE)
		}
	}
}

func TestPathErrorsFollowTheLocalTableAndLeaveItAsItIs(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, localTable(model.DispatchRR)))
	f := flowTo(vip4, 443, 1)
	w.checkVerdict(pathError(f, 3, 4, 1400, f.answer(9), 128), lbVerdictFORWARDED_ICMP_BY_FALLBACK)
	w.checkVerdict(f.frame(f.tcp(ack, nil, nil)), lbVerdictFORWARDED_UNKNOWN)
	got, want := w.checkVerdict(f.frame(f.tcp(syn, nil, nil)), lbVerdictFORWARDED_NEW)
	server := want.serverOf(got.frame)
	for range 2 {
		got, want = w.checkVerdict(pathError(f, 3, 4, 1400, f.answer(9), 28), lbVerdictFORWARDED_ICMP_BY_COOKIE)
		if want.serverOf(got.frame) != server {
			t.Fatal("the error went astray")
		}
	}
}

func TestFragmentsFollowTheLocalTable(t *testing.T) {
	w := newWorld(t, udpService("dns", vip4, localTable(model.DispatchRR)))
	for n := range 6 {
		f := flowTo(vip4, 53, n)
		datagram := f.udp(make([]byte, 88))
		w.checkVerdict(fragmentOf(client4, vip4, 17, uint32(n), 0, true, datagram[:48]), lbVerdictFORWARDED_NEW)
		w.checkVerdict(fragmentOf(client4, vip4, 17, uint32(n), 48, false, datagram[48:]), lbVerdictFORWARDED_FRAGMENT)
		w.checkVerdict(ethernet(0, ipPacket(client4, vip4, 17, f.udp(nil))), lbVerdictFORWARDED_BY_LOCAL_TABLE)
	}
}

func TestTheLocalTableCountsPackets(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, localTable(model.DispatchMaglev)))
	before := connections.Clock()
	f := flowTo(vip4, 443, 1)
	for _, flags := range []byte{syn, ack, psh | ack, fin | ack} {
		w.check(f.frame(f.tcp(flags, nil, nil)))
	}
	w.check(pathError(f, 3, 4, 1400, f.answer(9), 28))
	key := lbConnectionKey{ClientPort: wire.Port(f.client.Port()), ServicePort: wire.Port(443), Service: w.tables.Places()["web"].Number}
	key.Client[0] = binary.NativeEndian.Uint32(f.client.Addr().AsSlice())
	var entry lbLocalConnection
	if err := w.lb.objects.LocalConnections.Lookup(key, &entry); err != nil {
		t.Fatal(err)
	}
	if entry.Packets != 4 || entry.Bytes != 4*40 || entry.Last-before > connections.Clock()-before || entry.First > entry.Last>>10 {
		t.Errorf("%+v", entry)
	}
}

// It evicts: whoever was there longest, or nearly. The ones that are left out go to where the table of slots says. Every CPU keeps a few of its
// newest entries to itself, all of them together no more than half of the table: a flood on one CPU does not get at those of another.
func TestAFloodOfSYNsEvictsFromTheLocalTable(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, localTable(model.DispatchRR)))
	size := int(w.lb.objects.LocalConnections.MaxEntries())
	legit := func(n int) flow { return flowTo(vip4, 443, n) }
	for n := range size {
		f := legit(n)
		w.runOnly(f.frame(f.tcp(syn, nil, nil)))
	}
	for n := range 3 * size {
		f := flowTo(vip4, 80, n)
		w.runOnly(f.frame(f.tcp(syn, nil, nil)))
	}
	evicted := 0
	for n := range size {
		f := legit(n)
		if got := w.run(f.frame(f.tcp(ack, nil, nil))); got.verdict == lbVerdictFORWARDED_UNKNOWN {
			evicted++
		}
	}
	if evicted < size/4 {
		t.Errorf("%d of %d connections were evicted: the baseline does better than it can", evicted, size)
	}
}

func TestAnySequenceOfPacketsGoesTheWayOfTheLocalTable(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, localTable(model.DispatchMaglev)), serviceOf("web6", vip6, localTable(model.DispatchRR)),
		udpService("dns", vip4, localTable(model.DispatchWCMP)))
	rapid.Check(t, func(rt *rapid.T) {
		w.TB = quiet{t, rt}
		for range rapid.IntRange(1, 8).Draw(rt, "packets") {
			s := rapid.SampledFrom(w.want.Services).Draw(rt, "service")
			f := flowTo(s.VIP, s.Ports[0], rapid.IntRange(0, 5).Draw(rt, "client"))
			packet := ipPacket(f.client.Addr(), s.VIP, 17, f.udp(nil))
			if s.Protocol == model.ProtocolTCP {
				packet = ipPacket(f.client.Addr(), s.VIP, 6, f.tcp(anyFlags(rt), anyOptions(rt, 7), nil))
			}
			w.check(ethernet(0, packet))
		}
	})
}
