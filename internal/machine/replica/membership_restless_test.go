package replica

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// The key of a load balancer, stolen, or one whose daemon loses its pins all the time.
func TestANodeThatLosesItsEntriesAllTheTimeIsTakenOffAndWaitsLonger(t *testing.T) {
	h := newHosts(t, 1, "lb1", "lb2", "lb3", "lb4")
	all, others := []string{"lb1", "lb2", "lb3", "lb4"}, []string{"lb1", "lb2", "lb3"}
	h.await(3*time.Second, all...)
	forge := func() { h.hosts["lb4"].incarnation = h.random.Uint64() | 1 }
	before := h.stored.Ring.Version
	for end := h.now.Add(2 * time.Minute); h.now.Before(end); h.tick() { // with every report
		forge()
	}
	if versions := h.stored.Ring.Version - before; versions > 3 || !slices.Equal(h.on(), others) {
		t.Errorf("%d versions in two minutes; on the ring: %v", versions, h.on())
	}
	h.stays(8*time.Second, others...)
	if why := fmt.Sprint(h.who.Blocked()); !strings.Contains(why, "lb4 has failed, or lost its entries, 2 times lately: it joins the ring when it has answered for 10s") {
		t.Error(why)
	}
	h.await(4*time.Second, all...)

	before = h.stored.Ring.Version
	for end := h.now.Add(10 * time.Minute); h.now.Before(end); h.tick() { // as soon as that makes a version
		if slices.Equal(h.on(), all) && h.who.Phase() == Synced {
			forge()
		}
	}
	if versions := h.stored.Ring.Version - before; versions > 30 {
		t.Errorf("%d versions in ten minutes", versions)
	}
	h.await(waitMax+3*time.Second, all...)
	h.stays(calmTime, all...)
	forge()
	h.tick()
	h.await(time.Second, all...) // once it is forgiven
	if h.stored.Ring.Lost != 0 {
		t.Errorf("%d ranges were lost", h.stored.Ring.Lost)
	}
}

func TestANodeThatMovesAllTheTimeIsFollowedNowAndThen(t *testing.T) {
	h := newHosts(t, 1, "lb1", "lb2", "lb3", "lb4")
	h.await(3*time.Second, "lb1", "lb2", "lb3", "lb4")
	reports := func(address string) (reports []Report) {
		for _, name := range h.names() {
			r := h.report(h.hosts[name])
			if name == "lb4" {
				r.Address = netip.MustParseAddrPort(address)
			}
			reports = append(reports, r)
		}
		return reports
	}
	changes := 0
	for i := range 500 { // 50 a second
		h.now = h.now.Add(20 * time.Millisecond)
		if h.who.Step(h.now, h.wanted, reports(fmt.Sprintf("198.51.%d.%d:7475", 1+i/250, 1+i%250))) {
			h.store()
			changes++
		}
	}
	if changes == 0 || changes > 3 {
		t.Errorf("%d changes in ten seconds", changes)
	}
	h.now = h.now.Add(returnTime)
	if h.who.Step(h.now, h.wanted, reports("203.0.113.9:7475")); h.who.Members.Node("lb4").Address != netip.MustParseAddrPort("203.0.113.9:7475") {
		t.Error("it is not followed where it stays")
	}
}
