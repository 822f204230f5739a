package lb

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestAConnectionHasAnEntryAfterItsHandshake(t *testing.T) {
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE, model.ForwardSRv6} {
		for _, family := range familiesOf(forward) {
			t.Run(fmt.Sprintf("%s/%s/ipv6=%t", forward, family.vip, family.server), func(t *testing.T) {
				w := newWorld(t, tableOf("web", family.vip, func(s *model.Service) {
					withServers(family.server, 1, 2, 3)(s)
					s.Forward = forward
				}))
				before := connections.Clock()
				for n := range 6 {
					c := w.talkTo(flowTo(family.vip, 443, n), uint16(1+n%3))
					w.checkVerdict(c.frame(c.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW)
					w.checkTable("web") // whoever only asks for connections takes nothing
					c.send(ack, lbVerdictFORWARDED_ADDED)
					given := c.index()
					if given == 0 {
						t.Fatal("the server was not told")
					}
					for _, flags := range []byte{ack, psh | ack, fin | ack} {
						got, want := c.send(flags, lbVerdictFORWARDED_BY_TABLE)
						if want.serverOf(got.frame) != uint16(1+n%3) || c.index() != given {
							t.Fatalf("server %d, index %d: want %d, %d", want.serverOf(got.frame), c.index(), 1+n%3, given)
						}
					}
				}
				w.checkTable("web")
				entries, _, _ := w.tableMemory("web")
				for i := range entries {
					if entries[i].Owner.State() != conntable.StateNone {
						w.checkClocks(t, &entries[i], before)
					}
				}
			})
		}
	}
}

func TestUntilItsServerUsesTheIndexAConnectionIsToldItAgain(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, tableOf("web", vip, nil))
		c := w.talkTo(flowTo(vip, 443, 1), 2)
		without := c.echo
		c.send(ack, lbVerdictFORWARDED_ADDED)
		with := c.echo
		for range 3 {
			c.echo = without
			c.send(ack, lbVerdictFORWARDED_BY_TABLE)
			if c.echo != with {
				t.Fatalf("told %08x, and %08x before", c.echo, with)
			}
		}
		w.checkTable("web")
		if state := w.stateOf(c); state != conntable.StateNew {
			t.Fatalf("%s before its server used the index", state)
		}
		c.send(ack, lbVerdictFORWARDED_BY_TABLE)
		if state := w.stateOf(c); state != conntable.StateOpen {
			t.Fatalf("%s after its server used the index", state)
		}
		c.echo = without // an old segment, sent again
		c.send(ack, lbVerdictFORWARDED_BY_TABLE)
		if c.echo != with {
			t.Fatal("another index")
		}
		w.checkTable("web")
	}
}

// stateOf is the state of the entry of which the connection's server knows.
func (w *world) stateOf(c *talk) conntable.State {
	s := service(&w.want, "web")
	first, _ := w.connections.partition("web", w.tableHash(s, refConnection{"web", c.client, c.flow.service.Port()}))
	return w.lb.tables.connections.Entries[first+uint32(c.index())].Owner.State()
}

func TestTheIndexIsToldInEveryOrderOfOptions(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil), tableOf("web6", vip6, nil))
	for i, pattern := range optionPatterns {
		t.Run(pattern.name, func(t *testing.T) {
			w.TB = t
			for name, f := range map[string]flow{"web": flowTo(vip4, 80, i), "web6": flowTo(vip6, 80, i)} {
				for _, payload := range []string{"", "odd"} {
					for _, vlan := range []uint16{0, 7} {
						segment := f.tcp(ack, optionBytes(pattern.hex, 1234, w.cookieFor(name, f, 3, 1)), []byte(payload))
						got, _ := w.check(ethernet(vlan, ipPacket(f.client.Addr(), f.service.Addr(), 6, segment)))
						if got.verdict != lbVerdictFORWARDED_ADDED && got.verdict != lbVerdictFORWARDED_BY_TABLE {
							t.Fatal(verdictNames[got.verdict])
						}
						w.decode(got.frame)
					}
				}
			}
		})
	}
	w.TB = t
	w.checkTable("web")
	w.checkTable("web6")
}

func TestTheLoadBalancersIndexIsOnlyInTheEcho(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	c := w.talkTo(flowTo(vip4, 443, 1), 2)
	before := c.echo
	c.send(ack, lbVerdictFORWARDED_ADDED)
	bits := service(&w.want, "web").CookieBits
	if before>>bits != c.echo>>bits || (before^c.echo)>>(bits-1)&1 != 0 {
		t.Fatalf("echo %08x became %08x: more than node and index", before, c.echo)
	}
}

func TestFINAndRSTEndAConnectionOnce(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, flags := range [][]byte{{fin | ack, fin | ack, ack, rst, rst | ack}, {rst, rst, fin | ack, ack}, {fin | rst, fin}} {
			w := newWorld(t, tableOf("web", vip, nil))
			c := w.talkTo(flowTo(vip, 443, 1), 2)
			c.send(ack, lbVerdictFORWARDED_ADDED)
			c.send(ack, lbVerdictFORWARDED_BY_TABLE)
			for _, flag := range flags {
				c.send(flag, lbVerdictFORWARDED_BY_TABLE)
				w.checkTable("web")
			}
		}
	}
}

func TestAnEndBeforeItsServerUsesTheIndexIsSeenToo(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	c := w.talkTo(flowTo(vip4, 443, 1), 2)
	without := c.echo
	c.send(ack, lbVerdictFORWARDED_ADDED)
	c.echo = without
	c.send(fin|ack, lbVerdictFORWARDED_BY_TABLE)
	w.checkTable("web")
	if state := w.stateOf(c); state != conntable.StateFinished {
		t.Errorf("%s after FIN", state)
	}
}

func TestWhatOnlyEndsTakesNoEntry(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	for n, flags := range []byte{fin | ack, rst, rst | ack, fin} {
		w.talkTo(flowTo(vip4, 443, n), 2).send(flags, lbVerdictFORWARDED_BY_COOKIE)
	}
	w.checkTable("web")
}

// crowd is connections of one partition, which has room for all but the last ones.
func (w *world) crowd(count int) (crowd []*talk) {
	for i, f := range w.flowsOfPartition("web", count) {
		crowd = append(crowd, w.talkTo(f, uint16(1+i%3)))
	}
	return crowd
}

func TestAFullPartitionLeavesConnectionsTheirServers(t *testing.T) {
	for _, indexBits := range []uint8{1, 3, 6} {
		w := newWorld(t, tableOf("web", vip4, func(s *model.Service) { s.Table.IndexBits = indexBits }))
		room := 1<<indexBits - 1
		crowd := w.crowd(room + 5)
		for _, c := range crowd[:room] {
			c.send(ack, lbVerdictFORWARDED_ADDED)
			c.send(ack, lbVerdictFORWARDED_BY_TABLE)
		}
		for i, c := range crowd[room:] {
			before := c.echo
			for range 3 {
				got, want := c.send(ack, lbVerdictFORWARDED_TABLE_FULL)
				if want.serverOf(got.frame) != uint16(1+(room+i)%3) || c.echo != before {
					t.Fatal("a connection without an entry went astray")
				}
			}
			c.send(fin|ack, lbVerdictFORWARDED_BY_COOKIE)
		}
		for _, c := range crowd[:room] {
			c.send(ack, lbVerdictFORWARDED_BY_TABLE)
		}
		w.checkTable("web")
	}
}

func TestWhereNothingIsFreeTheIndexOfAnEndedConnectionIsTaken(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, tableOf("web", vip, func(s *model.Service) { s.Table.IndexBits, s.Ports = 2, []uint16{443} }))
		crowd := w.crowd(5)
		first, second, third, late, later := crowd[0], crowd[1], crowd[2], crowd[3], crowd[4]
		first.send(ack, lbVerdictFORWARDED_ADDED)
		first.send(fin|ack, lbVerdictFORWARDED_BY_TABLE)
		for _, c := range []*talk{second, third} { // there is room: the ended one keeps its entry
			c.send(ack, lbVerdictFORWARDED_ADDED)
			c.send(ack, lbVerdictFORWARDED_BY_TABLE)
		}
		first.send(ack, lbVerdictFORWARDED_BY_TABLE)
		late.send(ack, lbVerdictFORWARDED_ADDED)
		if late.index() != first.index() {
			t.Fatalf("index %d, not the ended connection's %d", late.index(), first.index())
		}
		late.send(ack, lbVerdictFORWARDED_BY_TABLE)
		w.checkTable("web")
		for _, flags := range []byte{ack, fin | ack, rst} { // its tag names late's entry now
			verdict := lbVerdictFORWARDED_BY_COOKIE
			if flags == ack {
				verdict = lbVerdictFORWARDED_TABLE_FULL
			}
			first.send(flags, verdict)
			w.checkTable("web")
		}
		later.send(ack, lbVerdictFORWARDED_TABLE_FULL)
		third.send(rst, lbVerdictFORWARDED_BY_TABLE)
		later.send(ack, lbVerdictFORWARDED_ADDED)
		w.checkTable("web")
	}
}

func TestAConnectionOfTheSameAddressesIsAnotherOne(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	f := flowTo(vip4, 443, 1)
	old := w.talkTo(f, 2)
	old.send(ack, lbVerdictFORWARDED_ADDED)
	old.send(fin|ack, lbVerdictFORWARDED_BY_TABLE)
	again := w.talkTo(f, 3) // another server: its cookie is another one, and says no index
	w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW)
	got, want := again.send(ack, lbVerdictFORWARDED_ADDED)
	if want.serverOf(got.frame) != 3 {
		t.Fatal("went to the server of the connection before")
	}
	again.send(ack, lbVerdictFORWARDED_BY_TABLE)
	got, want = old.send(ack, lbVerdictFORWARDED_BY_TABLE) // a late packet of the one before goes where it belongs
	if want.serverOf(got.frame) != 2 {
		t.Fatal("went to the server of the connection after")
	}
	w.checkTable("web")
}

func TestTagsOfOthersChangeNothing(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, func(s *model.Service) { s.Table.IndexBits = 3 }))
	crowd := w.crowd(4)
	victim, thief := crowd[0], crowd[1]
	victim.send(ack, lbVerdictFORWARDED_ADDED)
	victim.send(ack, lbVerdictFORWARDED_BY_TABLE)
	s := service(&w.want, "web")
	for _, flags := range []byte{ack, fin | ack, rst} {
		for index := range uint16(8) { // what it may guess: the tag of every index
			thief.echo = w.cookieFor("web", thief.flow, layoutOf(s).Join(0, index, 2), 1)
			got, want := w.check(thief.frame(thief.tcp(flags, timestamps(5, thief.echo), nil)))
			if want.serverOf(got.frame) != 2 {
				t.Fatal("went astray")
			}
			w.checkTable("web")
		}
	}
	victim.send(ack, lbVerdictFORWARDED_BY_TABLE)
	if state := w.stateOf(victim); state != conntable.StateOpen {
		t.Errorf("the victim is %s", state)
	}
}

func TestRotationOfKeysMovesNoEntry(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	c := w.talkTo(flowTo(vip4, 443, 1), 2)
	c.send(ack, lbVerdictFORWARDED_ADDED)
	c.send(ack, lbVerdictFORWARDED_BY_TABLE)
	_, index, id := c.plainIn(c.echo)
	w.update(func(want *plan.Want) { want.Keys = testKeys(1, 2) })
	c.send(ack, lbVerdictFORWARDED_BY_TABLE)
	c.echo = w.cookieFor("web", c.flow, layoutOf(service(&w.want, "web")).Join(0, index, id), 2) // the agent goes over to the new key
	c.send(ack, lbVerdictFORWARDED_BY_TABLE)
	w.update(func(want *plan.Want) { want.Keys = testKeys(2, 3) })
	c.send(ack, lbVerdictFORWARDED_BY_TABLE)
	w.checkTable("web")
}

func TestATableOfAnotherSizeIsFilledAnew(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, func(s *model.Service) { s.CookieBits, s.Table.IndexBits = 14, 4 }))
	var crowd []*talk
	for n := range 30 {
		c := w.talkTo(flowTo(vip4, 443, n), uint16(1+n%3))
		c.send(ack, lbVerdictFORWARDED_ADDED)
		c.send(ack, lbVerdictFORWARDED_BY_TABLE)
		crowd = append(crowd, c)
	}
	for _, resize := range []func(*model.Table){
		func(t *model.Table) { t.Entries = 1024 },
		func(t *model.Table) { t.PacketLimit = 0; t.IdleTimeout *= 2 }, // of another shape it is not
		func(t *model.Table) { t.Entries = 256 },
	} {
		before := w.tables.Places()["web"].Table
		w.update(func(want *plan.Want) { resize(&service(want, "web").Table) })
		fresh := w.tables.Places()["web"].Table != before
		added := 0
		for n, c := range crowd {
			got, want := w.check(c.frame(c.tcp(ack, timestamps(5, c.echo), nil)))
			if want.serverOf(got.frame) != uint16(1+n%3) {
				t.Fatal("went astray")
			}
			if c.echo = echoIn(got.frame); got.verdict == lbVerdictFORWARDED_ADDED {
				added++
				c.send(ack, lbVerdictFORWARDED_BY_TABLE)
			}
		}
		if fresh && added != len(crowd) || !fresh && added > 0 {
			t.Errorf("%d were added, and the table is another one: %t", added, fresh)
		}
		w.checkTable("web")
	}
}

func TestAServiceGoesOverToATableWithoutALostConnection(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) { s.CookieBits = 14 }))
	c := w.talkTo(flowTo(vip4, 443, 1), 2)
	c.send(ack, lbVerdictFORWARDED_BY_COOKIE)
	w.update(func(want *plan.Want) {
		s := service(want, "web")
		s.Affinity, s.Table = model.AffinityTable, model.Table{Entries: 64}
		s.ApplyDefaults()
	})
	got, want := c.send(ack, lbVerdictFORWARDED_ADDED)
	if want.serverOf(got.frame) != 2 {
		t.Error("went astray")
	}
	w.checkTable("web")
}

func TestEntriesOutliveTheConfigurationsOfTheirServers(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	c := w.talkTo(flowTo(vip4, 443, 1), 2)
	c.send(ack, lbVerdictFORWARDED_ADDED)
	c.send(ack, lbVerdictFORWARDED_BY_TABLE)
	w.update(func(want *plan.Want) {
		s := service(want, "web")
		s.Removed = []model.Server{s.Servers[1]}
		s.Servers = append(s.Servers[:1:1], s.Servers[2:]...)
	})
	c.send(ack, lbVerdictFORWARDED_BY_TABLE)
	w.update(func(want *plan.Want) { service(want, "web").Removed = nil })
	w.check(c.frame(c.tcp(ack, timestamps(5, c.echo), nil))) // nobody has its id
	w.checkTable("web")
}
