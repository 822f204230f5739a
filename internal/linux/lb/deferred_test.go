package lb

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
)

// countLater lets packets wait while a test runs; none of earlier ones do.
func (w *world) countLater(t *testing.T) {
	t.Helper()
	set := func(enabled bool) {
		none := make([]lbDeferredList, ebpf.MustPossibleCPU())
		if err := errors.Join(w.lb.objects.DeferredLists.Put(uint32(0), none), w.lb.DeferCounts(enabled)); err != nil {
			t.Fatal(err)
		}
	}
	set(true)
	t.Cleanup(func() { set(false) })
}

// waiting is what has been written down of the entries of a table and is not counted yet.
func (w *world) waiting(t *testing.T) (packets map[uint32]uint32, bytes map[uint32]uint64) {
	t.Helper()
	var lists []lbDeferredList
	if err := w.lb.objects.DeferredLists.Lookup(uint32(0), &lists); err != nil {
		t.Fatal(err)
	}
	packets, bytes = map[uint32]uint32{}, map[uint32]uint64{}
	for _, list := range lists {
		for _, later := range list.At[:list.Count] {
			packets[later.Entry]++
			bytes[later.Entry] += later.Length
		}
	}
	return packets, bytes
}

// entryAt returns the number and the entry of which the connection's server knows.
func (w *world) entryAt(c *talk) (uint32, *connections.Entry) {
	s := service(&w.want, "web")
	first, _ := w.connections.partition("web", w.tableHash(s, refConnection{"web", c.client, c.flow.service.Port()}))
	at := first + uint32(c.index())
	return at, &w.lb.tables.connections.Entries[at]
}

func TestPacketsThatWaitAreCountedOnce(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		t.Run(fmt.Sprint(vip), func(t *testing.T) {
			w := newWorld(t, tableOf("web", vip, nil))
			w.countLater(t)
			var connections []*talk
			sent := []uint32{1, 1, 1, 1, 1, 1, 1}
			for n := 0; len(connections) < len(sent); n++ {
				c := w.talkTo(flowTo(vip, 443, n), uint16(1+n%3))
				if c.again(ack) == lbVerdictFORWARDED_ADDED { // or another one has its place until its server knows
					connections = append(connections, c)
				}
			}
			waited := false
			for n := range 300 {
				i := n * n % len(connections)
				if got := connections[i].again(ack); got != lbVerdictFORWARDED_BY_TABLE {
					t.Fatal(verdictNames[got])
				}
				sent[i]++
				packets, bytes := w.waiting(t)
				for i, c := range connections {
					at, entry := w.entryAt(c)
					perPacket := entry.Bytes / uint64(entry.Packets) // all are alike
					if entry.Packets+packets[at] != sent[i] || bytes[at] != perPacket*uint64(packets[at]) || entry.Bytes%perPacket != 0 {
						t.Fatalf("%d packets were counted, %d wait, %d were sent (%d and %d bytes)", entry.Packets, packets[at], sent[i], entry.Bytes, bytes[at])
					}
					waited = waited || packets[at] > 0
				}
			}
			if !waited {
				t.Error("no packet has ever waited")
			}
		})
	}
}

func TestConnectionsWhoseEntryIsGoneWhilePacketsWaitGetAnother(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	w.countLater(t)
	c := w.talkTo(flowTo(vip4, 443, 1), 2)
	for range 20 {
		c.again(ack)
	}
	before := c.index()
	_, entry := w.entryAt(c)
	entry.Owner = entry.Owner.Nobody() // as the sweeper does, but the index stays taken
	for range 40 {
		switch got := c.again(ack); got {
		case lbVerdictFORWARDED_BY_TABLE: // whoever waits cannot know
		case lbVerdictFORWARDED_ADDED:
			if c.index() == before {
				t.Error("the same index was given again")
			}
			return
		default:
			t.Fatal(verdictNames[got])
		}
	}
	t.Error("no entry after 40 packets")
}

func TestWhatWaitsIsCountedWhenUserSpaceAsks(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	w.countLater(t)
	c := w.talkTo(flowTo(vip4, 443, 1), 2)
	for sent := uint32(1); sent <= 50; sent++ {
		c.again(ack)
		if sent%7 != 0 {
			continue
		}
		if err := w.lb.FlushCounts(); err != nil {
			t.Fatal(err)
		}
		if _, entry := w.entryAt(c); entry.Packets != sent {
			t.Fatalf("%d of %d packets are counted", entry.Packets, sent)
		}
	}
}

// What a limit or the scrubber may stop, and what changes an entry, is never late.
func TestPacketsThatMayNotWaitDoNot(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	w.countLater(t)
	c := w.talkTo(flowTo(vip4, 443, 1), 2)
	for range 40 {
		c.again(ack)
	}
	c.again(fin | ack)
	if state := w.stateOf(c); state != conntable.StateFinished {
		t.Errorf("%s after FIN", state)
	}
}
