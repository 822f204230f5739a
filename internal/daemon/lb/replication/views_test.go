package replication

import (
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestMessagesOfANewerViewOrInCirclesAreDropped(t *testing.T) {
	hosts := newRing(t, 4, 2)
	view := viewOf(1, 2, 1, 2, 3, 4)
	c := connectionOf(hosts[1], view, model.ProtocolUDP, 2)
	key := uint64(c.key(&hosts[2].want.Keys))
	k0, k1 := plan.PeerKey(hosts[2].want.Keys.Cookie[3])
	out := hosts[1].run(c.frame(0))
	say := func(change func(m *peermessage.Message)) []byte {
		m := out.message
		change(&m)
		return slices.Concat(out.frame[:14+28], m.Append(nil, peermessage.Key{K0: k0, K1: k1, Epoch: 3}, key, 2, false), out.inner())
	}
	for what, one := range map[string]struct {
		verdict string
		change  func(m *peermessage.Message)
	}{
		"an older chain in circles":  {"dropped_too_many_hops", func(m *peermessage.Message) { m.Chain, m.Hops = 0, hopLimit+1 }},
		"a newer chain":              {"dropped_other_view", func(m *peermessage.Message) { m.Chain = 2 }},
		"too many hops":              {"dropped_too_many_hops", func(m *peermessage.Message) { m.Hops = hopLimit + 1 }},
		"a Write of nobody in chain": {"dropped_no_member", func(m *peermessage.Message) { m.Last = 4 }},
		"a kind that there is not":   {"dropped_forged", func(m *peermessage.Message) { m.Kind = 6 }},
	} {
		frame := say(one.change)
		hosts[2].counted(what, one.verdict, func() {
			if did := hosts[2].run(frame); did.frame != nil {
				t.Errorf("%s: sent %+v", what, did.message)
			}
		})
	}
	answer := say(func(m *peermessage.Message) { m.Kind = peermessage.Owns }) // it is believed: a packet of the connection goes to its owner
	if did := hosts[2].run(answer); did.server != out.message.Owner {
		t.Errorf("an answer to nobody's packet: %+v", did)
	}
}

// While the ring changes, some load balancers have the newer view and others not yet.
//
// Promise: While the ring changes, a load balancer forwards replicated connections by its own entries; a new
// connection whose question meets a load balancer with the older ring is lost, and its client sends it again.
// Also held by TestBetweenTwoViewsOnlyAnswersCount and TestALoadBalancerThatControllersDoNotHearGoesOn.
func TestWhatIsKnownGoesOnWhileItsChainHasAnOlderView(t *testing.T) {
	hosts := newRing(t, 4, 2)
	view := viewOf(1, 2, 1, 2, 3, 4)
	c := connectionOf(hosts[1], view, model.ProtocolUDP, 2)
	owner, _ := deliverAll(hosts, hosts[1].run(c.frame(0)))
	newer := viewOf(2, 2, 1, 2, 3, 4) // the same chains, of another version
	hosts[1].Publish(newer)
	hosts[1].Period(hosts[1].path.ReplicaPeriod() + 1)
	for range 2 { // what comes back is not noted: each packet asks
		out := hosts[1].run(c.frame(0))
		back := hosts[2].run(out.frame)
		if out.message.Kind != peermessage.Write || back.to != 1 || back.message.Kind != peermessage.Owns || back.message.Owner != owner || back.message.Flags&peermessage.Lookup == 0 {
			t.Fatalf("asked %+v, and got %+v", out.message, back.message)
		}
		if did := hosts[1].run(back.frame); did.server != owner {
			t.Errorf("%+v, want server %d", did, owner)
		}
	}
	unknown := c
	for n := 500; unknown == c; n++ {
		if one := anyConnection(n); one.protocol == model.ProtocolUDP && hosts[1].chainOf(one, view)[0] == 2 {
			unknown = one
		}
	}
	hosts[2].counted("what nobody knows", "dropped_other_view", func() {
		if server, hops := deliverAll(hosts, hosts[1].run(unknown.frame(0))); server != 0 || hops != 1 {
			t.Errorf("server %d after %d messages", server, hops)
		}
	})
}
