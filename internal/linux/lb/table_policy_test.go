package lb

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// withScrubber makes server 9 the scrubber.
func withScrubber(ipv6 bool) func(*model.Service) {
	return func(s *model.Service) {
		withServers(ipv6, 1, 2, 3, 9)(s)
		s.Servers[3].Weight, s.Table.Scrubber = 0, "s9"
	}
}

// suspect makes the clients of a prefix suspects of a service.
func (w *world) suspect(name string, prefix netip.Prefix) {
	w.Helper()
	key := lbSuspectKey{PrefixLength: 32 + uint32(prefix.Bits()), Service: w.tables.Places()[name].Number}
	for i, b := range prefix.Addr().AsSlice() {
		key.Client[i/4] |= uint32(b) << (i % 4 * 8)
	}
	if err := w.lb.objects.Suspects.Put(key, uint32(1)); err != nil {
		w.Fatal(err)
	}
	w.suspects[name] = append(w.suspects[name], prefix)
}

func TestSuspectsVisitTheScrubberOnTheirWay(t *testing.T) {
	for _, family := range families {
		t.Run(fmt.Sprintf("%s/ipv6=%t", family.vip, family.server), func(t *testing.T) {
			w := newWorld(t, tableOf("web", family.vip, withScrubber(family.server)))
			before := w.talkTo(flowTo(family.vip, 443, 1), 2)
			before.send(ack, lbVerdictFORWARDED_ADDED)
			w.suspect("web", netip.PrefixFrom(before.client.Addr(), before.client.Addr().BitLen()-8).Masked())
			before.send(ack, lbVerdictFORWARDED_BY_TABLE) // entries that there are, user space flags
			c := w.talkTo(flowTo(family.vip, 443, 2), 2)
			w.checkVerdict(c.frame(c.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW)
			for range 3 {
				got, want := c.send(ack, lbVerdictFORWARDED_BY_SCRUBBER)
				if want.serverOf(got.frame) != 9 || len(want.stops) != 1 || want.stops[0] != 2 {
					t.Fatalf("by way of %v to %d", want.stops, want.serverOf(got.frame))
				}
				w.decode(got.frame)
			}
			if _, index, id := c.plainIn(c.echo); index == 0 || id != 2 {
				t.Fatalf("told index %d and server %d", index, id)
			}
			w.update(func(want *plan.Want) { service(want, "web").Servers[3].State = model.StateOff })
			c.send(ack, lbVerdictFORWARDED_BY_TABLE) // nobody scrubs
			w.update(func(want *plan.Want) { service(want, "web").Servers[3].State = model.StateActive })
			c.send(ack, lbVerdictFORWARDED_BY_SCRUBBER)
			c.send(fin|ack, lbVerdictFORWARDED_BY_SCRUBBER)
			w.checkTable("web")
		})
	}
}

func TestOnlySuspectsAreScrubbed(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, withScrubber(false)), tableOf("web6", vip6, nil))
	w.suspect("web", netip.MustParsePrefix("203.0.113.8/32"))
	w.suspect("web6", netip.MustParsePrefix("2001:db8:f00::/48")) // a service without a scrubber
	w.talkTo(flowTo(vip4, 443, 1), 2).send(ack, lbVerdictFORWARDED_ADDED)
	f := flowTo(vip6, 443, 1)
	w.checkVerdict(f.carrying(w.cookieFor("web6", f, 2, 1)), lbVerdictFORWARDED_ADDED)
}

func TestPathErrorsAndFragmentsOfSuspectsGoStraight(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, withScrubber(false)))
	w.suspect("web", netip.PrefixFrom(client4, 32))
	c := w.talkTo(flowTo(vip4, 443, 1), 2)
	segment := c.tcp(ack, timestamps(1, c.echo), make([]byte, 96))
	w.checkVerdict(fragmentOf(client4, vip4, 6, 7, 0, true, segment[:64]), lbVerdictFORWARDED_BY_SCRUBBER)
	w.checkVerdict(fragmentOf(client4, vip4, 6, 7, 64, false, segment[64:]), lbVerdictFORWARDED_FRAGMENT)
	w.checkVerdict(pathError(c.flow, 3, 1, 1400, c.answer(c.echo), 128), lbVerdictFORWARDED_ICMP_BY_COOKIE)
	w.checkTable("web")
}

// inOneWindow runs f in a window of the limits, again where it took too long.
func inOneWindow(t *testing.T, f func(again bool) bool) {
	t.Helper()
	for try := range 20 {
		window := connections.Clock() >> 10
		if good := f(try > 0); connections.Clock()>>10 == window {
			if !good {
				t.Error("in one window")
			}
			return
		}
	}
	t.Error("no test fits a window")
}

func TestAConnectionHasItsLimitInEveryWindow(t *testing.T) {
	for _, forward := range []model.Forward{model.ForwardIPIP, model.ForwardL2} { // one takes the short way through the program
		inOneWindow(t, func(bool) bool {
			w := newWorld(t, tableOf("web", vip4, func(s *model.Service) { s.Table.PacketLimit, s.Forward = 10, forward }))
			limit := int(packetsOfWindow(10))
			c, other := w.talkTo(flowTo(vip4, 443, 1), 2), w.talkTo(flowTo(vip4, 443, 2), 2)
			window := connections.Clock() >> 10
			verdicts := func(c *talk, packets int, flags byte) (passed int) {
				for range packets {
					got := w.run(c.frame(c.tcp(flags, timestamps(5, c.echo), nil)))
					if got.verdict != lbVerdictDROPPED_OVER_LIMIT {
						c.echo = echoIn(got.frame)
						passed++
					}
				}
				return passed
			}
			good := verdicts(c, limit, ack) == limit && verdicts(c, 5, ack) == 0 && verdicts(other, 3, ack) == 3
			entry := w.entryOf(c)
			good = good && entry.Packets == uint32(limit+5) && entry.Bytes>>48 == uint64(limit)
			entry.Last -= 1 << 10 // a window has passed
			good = good && verdicts(c, limit+3, ack) == limit && verdicts(c, 1, fin|ack) == 0
			good = good && w.stateOf(c) == conntable.StateOpen && entry.Packets == uint32(2*limit+5+3+1)
			if connections.Clock()>>10 == window && !good {
				t.Errorf("%+v", entry)
			}
			return good
		})
	}
}

// entryOf is the memory of the entry of which the connection's server knows.
func (w *world) entryOf(c *talk) *connections.Entry {
	first, _ := w.connections.partition("web", w.tableHash(service(&w.want, "web"), refConnection{"web", c.client, c.flow.service.Port()}))
	return &w.lb.tables.connections.Entries[first+uint32(c.index())]
}

func TestPathErrorsNeitherUseNorChangeEntries(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		kind := byte(3)
		if vip.Is6() {
			kind = 1
		}
		w := newWorld(t, tableOf("web", vip, nil))
		c := w.talkTo(flowTo(vip, 443, 1), 2)
		w.checkVerdict(pathError(c.flow, kind, 1, 1400, c.answer(c.echo), 128), lbVerdictFORWARDED_ICMP_BY_COOKIE)
		w.checkTable("web")
		c.send(ack, lbVerdictFORWARDED_ADDED)
		got, want := w.checkVerdict(pathError(c.flow, kind, 1, 1400, c.answer(c.echo), 128), lbVerdictFORWARDED_ICMP_BY_COOKIE)
		if want.serverOf(got.frame) != 2 {
			t.Error("the error went astray")
		}
		w.checkTable("web")
	}
}

func TestWhatHasNoTimestampTouchesNoEntry(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	c := w.talkTo(flowTo(vip4, 443, 1), 2)
	c.send(ack, lbVerdictFORWARDED_ADDED)
	for _, packet := range []struct {
		flags   byte
		verdict lbVerdict
	}{{syn, lbVerdictFORWARDED_NO_TIMESTAMP}, {ack, lbVerdictFORWARDED_NO_TIMESTAMP}, {fin | ack, lbVerdictFORWARDED_NO_TIMESTAMP}, {rst, lbVerdictFORWARDED_RESET}} {
		w.checkVerdict(c.frame(c.tcp(packet.flags, nil, nil)), packet.verdict)
		w.checkTable("web")
	}
	c.send(fin|ack, lbVerdictFORWARDED_BY_TABLE)
	got, want := w.checkVerdict(c.frame(c.tcp(rst, nil, nil)), lbVerdictFORWARDED_BY_CLOSING) // the socket is closed already
	if want.serverOf(got.frame) != 2 {
		t.Error("the reset went astray")
	}
	w.checkTable("web")
}

func TestFragmentsOfAConnectionAreOfItsEntry(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, tableOf("web", vip, nil))
		c := w.talkTo(flowTo(vip, 443, 1), 2)
		for n, verdict := range []lbVerdict{lbVerdictFORWARDED_ADDED, lbVerdictFORWARDED_BY_TABLE} {
			segment := c.tcp(ack, timestamps(1, c.echo), make([]byte, 96))
			w.checkVerdict(fragmentOf(c.client.Addr(), vip, 6, uint32(n), 0, true, segment[:64]), verdict)
			w.checkVerdict(fragmentOf(c.client.Addr(), vip, 6, uint32(n), 64, false, segment[64:]), lbVerdictFORWARDED_FRAGMENT)
		}
		w.checkTable("web")
	}
}

func TestWhatCannotBeSentIsSeenAllTheSame(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	c := w.talkTo(flowTo(vip4, 443, 1), 2)
	w.checkVerdict(c.frame(c.tcp(ack, timestamps(1, c.echo), make([]byte, 1600))), lbVerdictANSWERED_TOO_BIG)
	w.checkTable("web")
	w.update(func(want *plan.Want) { want.Paths[serverOf(2, false).Address] = plan.Path{} })
	c.send(ack, lbVerdictDROPPED_NO_NEXT_HOP)
	w.checkTable("web")
}

// anyTablePacket is a packet of one of few connections to a service with a table, with a tag that may be anything.
func (w *world) anyTablePacket(rt *rapid.T) []byte {
	s := rapid.SampledFrom(w.want.Services).Draw(rt, "service")
	client := rapid.IntRange(0, 40).Draw(rt, "client")
	f := flowTo(s.VIP, 443, client)
	layout := layoutOf(&s)
	tag := rapid.Uint16Range(0, 1<<(layout.NodeBits+layout.IndexBits)-1).Draw(rt, "tag")
	if rapid.IntRange(0, 3).Draw(rt, "known") > 0 { // the one of its own entry, if it has one
		tag = w.tagOf(&s, f)
	}
	id := uint16(1 + client%3)
	if rapid.IntRange(0, 7).Draw(rt, "another") == 0 {
		id = rapid.Uint16Range(0, 4).Draw(rt, "id")
	}
	echo := w.cookieFor(s.Name, f, tag<<layout.IDBits|id, rapid.Uint32Range(1, 2).Draw(rt, "epoch"))
	options := timestamps(7, echo)
	if rapid.IntRange(0, 3).Draw(rt, "slow") == 0 {
		options = optionBytes(rapid.SampledFrom(optionPatterns).Draw(rt, "pattern").hex, 7, echo)
	}
	segment := f.tcp(anyFlags(rt), options, make([]byte, rapid.IntRange(0, 3).Draw(rt, "payload")))
	return ethernet(rapid.SampledFrom([]uint16{0, 5}).Draw(rt, "vlan"), ipPacket(f.client.Addr(), s.VIP, 6, segment))
}

func (w *world) tagOf(s *plan.Service, f flow) uint16 {
	connection := refConnection{s.Name, f.client, f.service.Port()}
	first, end := w.connections.partition(s.Name, w.tableHash(s, connection))
	for entry := first; entry < end; entry++ {
		if e := w.connections.entries[entry]; e != nil && e.connection == connection {
			return w.want.Tier.ID<<s.Table.IndexBits | uint16(entry-first)
		}
	}
	return 0
}

func TestAnySequenceOfPacketsLeavesTheTableOfTheReference(t *testing.T) {
	small := func(indexBits uint8) func(*model.Service) {
		return func(s *model.Service) { s.Table.Entries, s.Table.IndexBits = conntable.BlockEntries, indexBits }
	}
	w := newWorld(t, tableOf("web", vip4, small(1)), tableOf("web6", vip6, small(2)),
		tableOf("gue", netip.MustParseAddr("198.51.100.11"), func(s *model.Service) {
			withScrubber(false)(s)
			small(3)(s)
			s.Forward = model.ForwardGUE
		}))
	w.update(func(want *plan.Want) { want.Keys = testKeys(1, 2) })
	w.suspect("gue", netip.MustParsePrefix("203.0.113.0/24"))
	rapid.Check(t, func(rt *rapid.T) {
		w.TB = quiet{t, rt}
		w.age()
		for range rapid.IntRange(1, 12).Draw(rt, "packets") {
			w.check(w.anyTablePacket(rt))
		}
		for _, s := range w.want.Services {
			w.checkTable(s.Name)
		}
	})
}
