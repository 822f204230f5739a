package dataplane

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Promise: Packets of unknown connections are a problem after the predecessor of their service was removed, and packets for a VIP that is given up are one.
func TestPacketsThatComeAfterAMoveAreNoticed(t *testing.T) {
	seen, web := succeeded(0, "10.0.0.5")
	web.VIP = netip.MustParseAddr("198.51.100.1")
	predecessor := web.Predecessor
	var l late
	now, counted := time.Unix(1000, 0), lb.Arrivals{All: 500, Orphans: 50}
	look := func(when string, all, orphans uint64, want ...string) {
		t.Helper()
		counted.All, counted.Orphans, now = counted.All+all, counted.Orphans+orphans, now.Add(time.Second)
		l.listen(seen, now, func(plan.Place) (lb.Arrivals, error) { return counted, nil })
		have := l.problems(now)
		matches := len(have) == len(want)
		for i := range have {
			matches = matches && strings.Contains(have[i], want[i])
		}
		if !matches {
			t.Errorf("%s: %q, want %q", when, have, want)
		}
	}
	look("what an earlier process counted", 0, 0)
	look("it has a predecessor", 1000, 5)
	web.Predecessor = model.Predecessor{}
	look("it is removed", 10, 0)
	look("two packets, of anybody", 10, 2)
	look("some more", 10, 12, "service web: 14 packets of connections that did not begin here arrived after its predecessor [10.0.0.5] was removed (1970-01-01T00:16:43Z)")
	look("none for a second", 10, 0, "14 packets")
	now = now.Add(orphanFor)
	look("none for a minute", 10, 0)
	look("one that was away", 10, 1, "15 packets")
	web.Predecessor = predecessor
	look("it is set again", 10, 1)
	web.Predecessor = model.Predecessor{}
	look("removed once more", 10, 1)
	counted = lb.Arrivals{}
	look("counters begin anew", 10, 0)
	now = now.Add(removedFor)
	look("long ago", 10, 10)
	look("forgotten", 10, 10)

	web.Announce = model.VIPOff
	look("it is given up", 10, 0)
	look("packets come", 1, 0, "service web: packets still come here, and its vip is given up")
	look("none for a second", 0, 0, "its vip is given up")
	now = now.Add(lateFor)
	look("none any more", 0, 0)
	web.Announce = model.VIPAuto
	look("taken again", 100, 100)
	if len(l.of) != 0 {
		t.Errorf("remembered: %v", l.of)
	}
}
