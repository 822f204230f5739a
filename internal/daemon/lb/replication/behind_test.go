package replication

import (
	"testing"
	"time"
)

func TestALoadBalancerIsBehindWhenMostOthersHaveHadANewerRingForASecond(t *testing.T) {
	views := func(versions ...uint32) map[Peer]uint32 {
		all := map[Peer]uint32{}
		for i, version := range versions {
			all[Peer{Number: uint16(i + 1)}] = version
		}
		return all
	}
	var b behind
	now := time.Now()
	for _, step := range []struct {
		what   string
		own    uint32
		others map[Peer]uint32
		behind bool
		asks   bool
	}{
		{"alone", 5, nil, false, false},
		{"the same", 5, views(5, 5), false, false},
		{"one of two is newer", 5, views(9, 5), false, false},
		{"one of two is newer, for long", 5, views(9, 5), false, true},
		{"most are newer, since now", 5, views(9, 7), false, true},
		{"most are newer, for long", 5, views(9, 8), true, true},
		{"it has caught up, and the ring has changed again", 7, views(9, 9), false, true},
		{"it has not caught up since", 8, views(9, 9), true, true},
		{"it keeps up with a ring that changes all the time", 9, views(10, 10), false, true},
		{"and again", 10, views(11, 11), false, true},
		{"and again", 11, views(12, 12), false, true},
		{"it is there", 12, views(12, 12), false, false},
		{"half of four are newer", 12, views(13, 13, 12, 12), false, false},
		{"half of four are newer, for long", 12, views(13, 13, 12, 12), false, true},
		{"others are older", 12, views(3, 11, 12), false, false},
		{"it has no ring", 0, views(11), false, false},
		{"it has no ring, for long", 0, views(11), true, true},
		{"nobody answers any more", 0, nil, false, false},
		{"the only other one is newer, or somebody has its key", 5, views(9), false, false},
		{"it is for long", 5, views(9), true, true},
	} {
		now = now.Add(behindLife)
		b.note(now, step.own, step.others)
		if why := b.why(now); (why != "") != step.behind {
			t.Errorf("%s: %q", step.what, why)
		}
		if peer, asks := b.asked(now, 3); asks != step.asks || asks && step.others[peer] <= step.own {
			t.Errorf("%s: asks %v, %+v", step.what, asks, peer)
		}
	}
}
