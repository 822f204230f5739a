package replication

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/machine/replica"
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

// chainWithout is a TCP connection of whose chain node 1 is no part.
func chainWithout(h *host, view replica.View) (c connection, head, tail uint16) {
	for n := 0; ; n++ {
		c = anyConnection(n)
		if chain := h.chainOf(c, view); c.protocol == model.ProtocolTCP && !slices.Contains(chain, 1) {
			return c, chain[0], chain[1]
		}
	}
}

func TestAWriteBeginsAtTheHeadOfItsChain(t *testing.T) {
	hosts := newRing(t, 4, 2)
	c, head, tail := chainWithout(hosts[1], viewOf(1, 2, 1, 2, 3, 4))
	out := hosts[1].run(c.frame(syn))
	if out.message.Kind != peermessage.Write || out.message.Last != 0 || out.to != head {
		t.Fatalf("asked %d: %+v", out.to, out.message)
	}
	k0, k1 := plan.PeerKey(hosts[1].want.Keys.Cookie[3])
	to := func(node, last uint16) []byte {
		m := out.message
		m.Last = last
		outer := slices.Clone(out.frame[14 : 14+28])
		copy(outer[16:], nodeAddress(node).AsSlice())
		outer[10], outer[11] = 0, 0
		binary.BigEndian.PutUint16(outer[10:], checksum(outer[:20]))
		return slices.Concat(out.frame[:14], outer, m.Append(nil, peermessage.Key{K0: k0, K1: k1, Epoch: 3}, uint64(c.key(&hosts[1].want.Keys)), node, false), out.inner())
	}
	hosts[tail].counted("a Write that begins at the tail", "dropped_no_member", func() {
		if did := hosts[tail].run(to(tail, 0)); did.frame != nil {
			t.Errorf("sent %+v", did.message)
		}
	})
	entries, _ := hosts[tail].path.ReplicaTables()
	if entries.Count() != 0 {
		t.Errorf("the tail has an entry, and the head none")
	}
	if did := hosts[tail].run(to(tail, head)); did.message.Kind != peermessage.Owns || did.to != 1 || entries.Count() != 1 {
		t.Errorf("a Write of the head: %+v to %d, %d entries", did.message, did.to, entries.Count())
	}
}

// What a tail has and did not take as the tail may be unknown to the others of its chain: it is of no use until all have it.
func TestATailAnswersWhatAllOfItsChainHaveAlone(t *testing.T) {
	hosts := newRing(t, 4, 2)
	c, head, tail := chainWithout(hosts[1], viewOf(1, 2, 1, 2, 3, 4))
	const owner = 4
	asked := func(flags uint8) (question, lookup sent) {
		t.Helper()
		entries, _ := hosts[tail].path.ReplicaTables()
		emptied(t, entries)
		if _, ok, err := entries.Insert(replicas.Entry{Key: uint64(c.key(&hosts[1].want.Keys)), Owner: owner, Period: hosts[tail].path.ReplicaPeriod(), Flags: flags}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		return hosts[tail].run(hosts[1].run(c.frame(ack)).frame), hosts[tail].run(hosts[1].run(c.frame(rst)).frame)
	}
	question, lookup := asked(replicas.Cacheable)
	if question.message.Kind != peermessage.Owns || question.to != 1 || question.message.Owner != owner || lookup.message.Kind != peermessage.Owns || lookup.message.Owner != owner {
		t.Errorf("all have it: %+v to %d, and %+v", question.message, question.to, lookup.message)
	}
	question, lookup = asked(0)
	if m := question.message; m.Kind != peermessage.Write || question.to != head || m.Last != 0 || m.Owner != owner || m.Flags&peermessage.Known == 0 {
		t.Errorf("it is not known whether all have it: %+v to %d", m, question.to)
	}
	if lookup.message.Kind != peermessage.Owns || lookup.message.Owner == owner {
		t.Errorf("it is not known whether all have it, and a look-up gets %+v", lookup.message)
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
