package plan

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

// follower is a node that gets some of the updates of a service.
type follower struct{ published image }

// update tells the service as it is now, and what was before.
func (f *follower) update(want *Want, s *Service) { f.published = compile(want, s, &f.published) }

// restart leaves what is in the tables, which do not tell what they were made of.
func (f *follower) restart() { f.published.table = table{} }

// Every node has the same table for the same sequence of pools: who gets all updates, who misses some, who was away for some and restarted, and
// who has come last and knows the past alone.
//
// Promise: A load balancer that missed changes of the pool makes the same table as all others from the last eight
// pools.
func TestEveryNodeHasTheSameTable(t *testing.T) {
	const versions = 8 // as many as nodes are told
	rapid.Check(t, func(rt *rapid.T) {
		s := testService("web", netip.MustParseAddr("198.51.100.1"), 1, 2, 3, 4, 5, 6)
		s.TableSlots = 251
		if rapid.Bool().Draw(rt, "choices") {
			s.Dispatch, s.Forward = model.DispatchChoices, model.ForwardGUE
			s.Choices.Candidates, s.Choices.History = uint8(rapid.IntRange(2, 4).Draw(rt, "candidates")), uint8(rapid.IntRange(1, 4).Draw(rt, "history"))
		}
		s.ApplyDefaults()
		want := &Want{Keys: testKeys(1)}
		var all, some, away, late follower
		tell := func(f *follower) {
			one := s
			one.Servers, one.Past = slices.Clone(s.Servers), slices.Clone(s.Past)
			f.update(want, &one)
		}
		for _, f := range []*follower{&all, &some, &away} {
			tell(f)
		}
		for range rapid.IntRange(1, versions).Draw(rt, "changes") {
			before := s.Shares()
			server := &s.Servers[rapid.IntRange(0, len(s.Servers)-1).Draw(rt, "server")]
			if server.State == model.StateActive && s.takesNewBut(server.ID) {
				server.State = model.StateDraining
			} else {
				server.State = model.StateActive
			}
			if after := s.Shares(); !slices.Equal(before, after) {
				s.Past = append(s.Past, before)
			}
			tell(&all)
			if rapid.Bool().Draw(rt, "arrives") {
				tell(&some)
			}
			if rapid.IntRange(0, 3).Draw(rt, "is there") == 0 {
				away.restart()
				tell(&away)
			}
		}
		tell(&some)
		away.restart()
		tell(&away)
		tell(&late)
		for name, f := range map[string]*follower{"missed some updates": &some, "was away": &away, "came last": &late} {
			for i := range all.published.slots {
				if f.published.slots[i] != all.published.slots[i] {
					rt.Fatalf("column %d of the node that %s is %v, of the others %v", i, name, f.published.slots[i], all.published.slots[i])
				}
			}
		}
	})
}

// With fewer servers than candidates a column has no owner for a while, and that takes a place in its history: what has been pushed must not be pushed again.
func TestARestartIsNoChangeWhereAColumnHadNoOwner(t *testing.T) {
	s := testService("web", netip.MustParseAddr("198.51.100.1"), 1, 2, 3, 4, 5, 6)
	s.TableSlots, s.Dispatch, s.Forward = 251, model.DispatchChoices, model.ForwardGUE
	s.Choices.Candidates, s.Choices.History = 3, 3
	s.ApplyDefaults()
	want := &Want{Keys: testKeys(1)}
	var node follower
	node.update(want, &s)
	for _, i := range []int{1, 2, 5, 0, 5, 0} {
		s.Past = append(s.Past, s.Shares())
		if server := &s.Servers[i]; server.State == model.StateActive {
			server.State = model.StateDraining
		} else {
			server.State = model.StateActive
		}
		one := s
		one.Servers, one.Past = slices.Clone(s.Servers), slices.Clone(s.Past)
		node.update(want, &one)
	}
	before := node.published.slots
	node.restart()
	node.update(want, &s)
	if !slices.Equal(node.published.slots, before) {
		t.Error("the table is another one after a restart")
	}
}

// takesNewBut reports whether another server takes new connections.
func (s *Service) takesNewBut(id uint16) bool {
	return slices.ContainsFunc(s.Shares(), func(share model.Share) bool { return share.ID != id })
}
