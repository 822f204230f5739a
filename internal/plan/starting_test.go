package plan

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/model"
)

// Promise: Who starts changes what dispatch draws from, and no table that places connections without cookies.
func TestStartsLeaveThePlacementTableAsItIs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		want := anyWant(rt)
		for i := range want.Services {
			want.Services[i].Starting = nil
		}
		n.update(want)
		before := n.tables.clone()
		for i := range want.Services {
			s := &want.Services[i]
			s.Starting = anyStarting(rt)
			changes, err := n.tables.Reweigh(s.Name, s.Weights, s.Starting)
			if err != nil {
				rt.Fatal(err)
			}
			for _, change := range changes {
				n.memory.apply(change)
				switch change.(type) {
				case WriteSlots, PointID, SetVIP, DeleteVIP, WriteServer:
					rt.Fatalf("%s: %+v", s.Dispatch, change)
				}
			}
			if s.Dispatch.Placed() && len(changes) > 0 {
				rt.Fatalf("%s: %+v", s.Dispatch, changes)
			}
			if have, had := n.tables.named[s.Name].slots, before.named[s.Name].slots; have != had {
				rt.Fatalf("%s: its slots are at %+v, and were at %+v", s.Dispatch, have, had)
			}
		}
		if changes := n.update(want); len(changes) > 0 {
			rt.Fatalf("the same by an update: %+v", changes)
		}
	})
}

// A node that is started anew has everybody whole: it does not know who came when.
func TestAfterARestartNobodyStarts(t *testing.T) {
	s := testService("web", vipAt(0))
	s.Dispatch = model.DispatchWRR
	for id := range uint16(3) {
		s.Servers = append(s.Servers, testServer(id+1))
	}
	s.Starting = slowstart.Parts{2: {Tenths: 3}}
	want := withPaths(&Want{Keys: testKeys(1), Services: []Service{s}})
	n := newNode(t)
	n.update(want)
	if have := n.drawable("web"); have[1] != 10 || have[2] != 3 || have[3] != 10 {
		t.Errorf("turns %v", have)
	}
	restored, err := Restore(testLimits, n.memory)
	if err != nil {
		t.Fatal(err)
	}
	n.tables, want.Services[0].Starting = restored, nil
	n.update(want)
	if have := n.drawable("web"); have[1] != 1 || have[2] != 1 || have[3] != 1 {
		t.Errorf("turns %v after a restart", have)
	}
}
