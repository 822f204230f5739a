package lb

import (
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/model"
)

// table is where the connections of a service are.
func (w *world) table(name string) connections.Table {
	return connections.Table{TablePlace: w.tables.Places()[name].Table, IPv6: service(&w.want, name).VIP.Is6()}
}

// connectionsOf are the connections of a service, by client.
func (w *world) connectionsOf(name string) map[netip.AddrPort]connections.Connection {
	found := map[netip.AddrPort]connections.Connection{}
	t := w.table(name)
	w.lb.Connections().Each(t, 0, t.Blocks, func(c *connections.Connection) { found[c.Client] = *c })
	return found
}

// again sends a packet past the reference, which does not know what sweeps do.
func (c *talk) again(flags byte) lbVerdict {
	c.Helper()
	got := c.run(c.frame(c.tcp(flags, timestamps(5, c.echo), []byte("data"))))
	c.echo = echoIn(got.frame)
	return got.verdict
}

func TestWhatPacketsSaidOfAConnectionCanBeRead(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, tableOf("web", vip, nil))
		headers := uint64(20 + 20 + 12 + len("data"))
		if vip.Is6() {
			headers += 20
		}
		began := time.Now()
		var crowd []*talk
		for i := range 3 {
			c := w.talkTo(flowTo(vip, 443, i), uint16(i+1))
			c.send(ack, lbVerdictFORWARDED_ADDED)
			for range i {
				c.send(ack, lbVerdictFORWARDED_BY_TABLE)
			}
			crowd = append(crowd, c)
		}
		crowd[2].send(rst, lbVerdictFORWARDED_BY_TABLE)
		found := w.connectionsOf("web")
		for i, c := range crowd {
			packets := uint32(1+i) + uint32(i/2)
			want := connections.Connection{Client: c.client, Server: uint16(i + 1), State: []conntable.State{conntable.StateNew, conntable.StateOpen, conntable.StateReset}[i],
				Packets: packets, Bytes: uint64(packets) * headers}
			got := found[c.client]
			if got.First < got.Last || got.First > 10*time.Second+time.Since(began) {
				t.Errorf("ages %v, %v", got.First, got.Last)
			}
			want.First, want.Last, want.Entry = got.First, got.Last, got.Entry
			if _, index := conntable.Index(got.Entry, w.table("web").IndexBits); got != want || index != c.index() {
				t.Errorf("got %+v, want %+v of index %d", got, want, c.index())
			}
		}
		if o := w.lb.Connections().Occupancy(w.table("web")); o != (connections.Occupancy{Entries: 126, Free: 123, Ended: 1}) {
			t.Errorf("occupancy %+v", o)
		}
	}
}

func TestAConnectionThatWasSweptGetsAnotherEntryAndKeepsItsServer(t *testing.T) {
	w := newWorld(t, tableOf("web", vip6, nil))
	c := w.talkTo(flowTo(vip6, 443, 1), 2)
	for range 2 {
		c.again(ack)
	}
	var told []string
	rules := &connections.SweepRules{Limits: conntable.Limits{New: time.Hour, Ended: time.Hour}}
	sweep := func() connections.Tally {
		table := w.table("web")
		return w.lb.Connections().Sweep(table, 0, table.Blocks, rules, func(c *connections.Connection, reason connections.EndReason) {
			told = append(told, c.Client.String()+" "+reason.String())
		})
	}
	if tally := sweep(); !slices.Equal(told, []string{c.client.String() + " idle"}) || tally != (connections.Tally{}) {
		t.Fatalf("told %v, tally %v", told, tally)
	}
	for _, want := range []lbVerdict{lbVerdictFORWARDED_ADDED, lbVerdictFORWARDED_BY_TABLE, lbVerdictFORWARDED_BY_TABLE} {
		if got := c.again(ack); got != want {
			t.Errorf("after a sweep: %s, not %s", verdictNames[got], verdictNames[want])
		}
	}
	if got := w.connectionsOf("web")[c.client]; got.Packets != 3 || got.Server != 2 || got.State != conntable.StateOpen {
		t.Errorf("its entry is %+v", got)
	}
	c.again(fin | ack)
	rules.Ended, told = 0, nil
	if sweep(); !slices.Equal(told, []string{c.client.String() + " fin"}) {
		t.Errorf("told %v", told)
	}
	if freed, err := w.lb.RecoverConnections([]connections.Table{w.table("web")}); freed != 0 || err != nil {
		t.Errorf("recovered %d, %v", freed, err)
	}
	if o := w.lb.Connections().Occupancy(w.table("web")); o.Free != o.Entries {
		t.Errorf("occupancy %+v", o)
	}
}

func TestWhoWatchesIsToldOfConnectionsWhoseIndexWasNeeded(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, tableOf("web", vip, func(s *model.Service) { s.Table.IndexBits = 1 }))
		crowd := w.crowd(4)
		end := func(c *talk, flags byte) {
			for _, f := range []byte{ack, ack, flags} {
				c.again(f)
			}
		}
		end(crowd[0], fin|ack)
		end(crowd[1], fin|ack) // takes the index while nobody watches
		watch, err := w.lb.WatchReclaimed()
		if err != nil {
			t.Fatal(err)
		}
		end(crowd[2], rst)
		end(crowd[3], fin|ack)
		for i, want := range []connections.EndReason{connections.EndedByFIN, connections.EndedByRST} {
			var c connections.Connection
			service, reason, err := watch.Next(func(uint32) bool { return vip.Is6() }, &c)
			if err != nil || service != w.tables.Places()["web"].Number || reason != want || c.Client != crowd[1+i].client || c.Packets != 3 || c.Server != uint16(2+i) {
				t.Errorf("told of %+v of service %d, %s: %v; want %s", c, service, reason, err, crowd[1+i].client)
			}
		}
		if err := watch.Close(); err != nil {
			t.Error(err)
		}
		if _, _, err := watch.Next(nil, nil); err != os.ErrClosed && err == nil {
			t.Errorf("after the end: %v", err)
		}
		if lost, err := w.lb.ReclaimedLost(); lost != 0 || err != nil {
			t.Errorf("lost %d, %v", lost, err)
		}
	}
}

func TestSuspectsAreThoseThatWereSetLast(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, tableOf("web", vip, withScrubber(false)), tableOf("other", vip.Next(), withScrubber(false)))
		c := w.talkTo(flowTo(vip, 443, 1), 2)
		for range 2 {
			c.again(ack)
		}
		network, _ := c.client.Addr().Prefix(c.client.Addr().BitLen() - 4)
		table := w.table("web")
		set := func(suspects ...Suspect) {
			t.Helper()
			if err := w.lb.SetSuspects(suspects); err != nil {
				t.Fatal(err)
			}
			rules := connections.SweepRules{Limits: conntable.Limits{New: time.Hour, Idle: time.Hour, Ended: time.Hour}}
			if len(suspects) > 0 {
				rules.Suspect = connections.NewSuspectNetworks([]netip.Prefix{suspects[0].Client}).Contain
			}
			w.lb.Connections().Sweep(table, 0, table.Blocks, &rules, nil)
		}
		number := func(name string) uint32 { return w.tables.Places()[name].Number }
		set(Suspect{number("web"), network}, Suspect{number("other"), network})
		if got := c.again(ack); got != lbVerdictFORWARDED_BY_SCRUBBER {
			t.Errorf("a connection that was there: %s", verdictNames[got])
		}
		fresh := w.talkTo(flowTo(vip, 443, 1), 2)
		fresh.client = netip.AddrPortFrom(fresh.client.Addr(), fresh.client.Port()+1)
		fresh.echo = w.cookieFor("web", fresh.flow, 2, 1)
		if got := fresh.again(ack); got != lbVerdictFORWARDED_BY_SCRUBBER {
			t.Errorf("a new connection: %s", verdictNames[got])
		}
		set(Suspect{number("other"), network})
		set()
		if got := c.again(ack); got != lbVerdictFORWARDED_BY_TABLE {
			t.Errorf("once it is cleared: %s", verdictNames[got])
		}
		if left, err := readMap[lbSuspectKey, uint32](w.lb.objects.Suspects); len(left) != 0 || err != nil {
			t.Errorf("left are %v, %v", left, err)
		}
	}
}
