package replica

import (
	"slices"
	"testing"
)

// kinds returns what is sent, with the nodes, until nothing more is.
func (f *fleet) kinds() (kinds []Kind, path []uint16) {
	for len(f.messages) > 0 {
		kinds = append(kinds, f.messages[0].Kind)
		path = append(path, f.messages[0].To)
		f.deliver(0)
	}
	return kinds, path
}

func TestTheFirstPacketAsksTheTailAndIsWrittenFromTheHeadOn(t *testing.T) {
	// Figure 3. Nodes 1 to 5 stand at fifths; the tail of a key after 4/5 is node 5. Node 1 has the packet.
	for _, example := range []struct {
		length int
		direct bool
		kinds  []Kind
		path   []uint16
	}{
		{1, false, []Kind{WhoOwns, Owns}, []uint16{5, 1}}, // tail is head
		{2, false, []Kind{WhoOwns, Write, Write, Owns}, []uint16{5, 4, 5, 1}},
		{3, false, []Kind{WhoOwns, Write, Write, Write, Owns}, []uint16{5, 3, 4, 5, 1}},
		{3, true, []Kind{Write, Write, Write, Owns}, []uint16{3, 4, 5, 1}},
	} {
		config := DefaultConfig(example.length)
		config.DirectToHead = example.direct
		f := newFleet(t, config, 5)
		key := at(9, 10)
		f.packet(1, key, 77)
		if kinds, path := f.kinds(); !slices.Equal(kinds, example.kinds) || !slices.Equal(path, example.path) {
			t.Errorf("L=%d: %v to %v, want %v to %v", example.length, kinds, path, example.kinds, example.path)
		}
		if f.answers[key] != 77 || f.nodes[1].Cached(key) != 77 {
			t.Errorf("L=%d: not answered, or not cached", example.length)
		}
		f.packet(1, key, 88)
		if len(f.messages) != 0 || f.nodes[1].Counters.FromLocal != 1 {
			t.Errorf("L=%d: the second packet asks again", example.length)
		}
	}
}

func TestAnotherForwarderLearnsWithTwoMessages(t *testing.T) {
	f := newFleet(t, DefaultConfig(3), 5)
	key := at(9, 10)
	f.packet(1, key, 77)
	f.deliverAll()
	f.packet(2, key, 88)
	if kinds, path := f.kinds(); !slices.Equal(kinds, []Kind{WhoOwns, Owns}) || !slices.Equal(path, []uint16{5, 2}) {
		t.Errorf("%v to %v", kinds, path)
	}
}

func TestTheTailForwardsByItself(t *testing.T) {
	f := newFleet(t, DefaultConfig(1), 5)
	f.packet(5, at(9, 10), 77)
	if len(f.messages) != 0 || f.answers[at(9, 10)] != 77 {
		t.Errorf("%v", f.messages)
	}
}

func TestOnlyTheTailsEntryIsCacheable(t *testing.T) {
	f := newFleet(t, DefaultConfig(3), 5)
	key := at(9, 10)
	f.packet(1, key, 77)
	f.deliverAll()
	for id, want := range map[uint16]struct {
		owner     Owner
		cacheable bool
	}{1: {}, 2: {}, 3: {77, false}, 4: {77, false}, 5: {77, true}} {
		if owner, cacheable := f.nodes[id].Lookup(key); owner != want.owner || cacheable != want.cacheable {
			t.Errorf("node %d: %d %v", id, owner, cacheable)
		}
	}
}

func TestForwardersThatAskAtTheSameTimeGetTheSameAnswer(t *testing.T) {
	f := newFleet(t, DefaultConfig(3), 5)
	for node := uint16(1); node <= 5; node++ {
		f.packet(node, at(9, 10), Owner(node))
	}
	for len(f.messages) > 0 {
		f.deliver(len(f.messages) - 1) // the fleet compares the answers
	}
	if tuple := f.tuple(at(9, 10)); !slices.Equal(tuple, []Owner{tuple[0], tuple[0], tuple[0]}) || tuple[0] == 0 {
		t.Errorf("%v", tuple)
	}
}

func TestWritesThatAreNotForThisNodeAreDropped(t *testing.T) {
	key := at(9, 10) // chain 3 4 5
	for what, m := range map[string]Message{
		"begins at a node that is not the head": {To: 4, Last: None},
		"goes to a node outside the chain":      {To: 1, Last: 5},
		"comes from a node outside the chain":   {To: 4, Last: 2},
		"belongs to a newer view":               {To: 3, View: 9, Chain: 9},
		"asks in a newer view":                  {To: 5, View: 9, Chain: 9, Kind: WhoOwns},
		"has come a long way":                   {To: 3, Hops: 200},
		"asks after a long way":                 {To: 5, Hops: 200, Kind: WhoOwns},
		"goes to a node without a view":         {To: 6},
	} {
		f := newFleet(t, DefaultConfig(3), 5)
		f.nodes[6] = NewNode(6, f.config)
		m.Key, m.Owner, m.Forwarder = key, 7, 1
		if m.Kind == 0 {
			m.Kind = Write
		}
		if m.View == 0 {
			m.View, m.Chain = 1, 1
		}
		if actions := f.nodes[m.To].Receive(m); len(actions) != 0 {
			t.Errorf("a message that %s: %v", what, actions)
		}
		c := f.nodes[m.To].Counters
		if c.OtherView+c.TooManyHop+c.NotHead+c.NotMember != 1 {
			t.Errorf("a message that %s: %+v", what, c)
		}
	}
}

func TestWhatWasAskedOfAnOlderChainIsAskedOfTheNewerOne(t *testing.T) {
	f := newFleet(t, DefaultConfig(2), 5)
	key := at(9, 10)
	old := f.nodes[1].Chain(key)
	f.change(Change{Fail: old[1:]})
	f.settle()
	chain := f.nodes[old[0]].Chain(key)
	for kind, to := range map[Kind]uint16{Write: chain[0], WhoOwns: chain[1]} {
		actions := f.nodes[2].Receive(Message{Kind: kind, From: 1, To: 2, Forwarder: 1, Owner: 7, View: 1, Chain: 1, Last: old[0], Key: key})
		if len(actions) != 1 {
			t.Fatalf("%v", actions)
		}
		if m := actions[0].Message; m.Kind != kind || m.To != to || m.Forwarder != 1 || m.Chain != 2 || m.Last != None || m.Owner != 7 || m.Hops != 1 {
			t.Errorf("%+v", m)
		}
	}
}

func TestANodeWithoutAViewDropsPackets(t *testing.T) {
	config := DefaultConfig(2)
	n := NewNode(1, &config)
	if actions := n.Packet(1, 2, true); len(actions) != 0 || n.Counters.NoView != 1 {
		t.Errorf("%v %+v", actions, n.Counters)
	}
}

// Else what is full would stay so: no entry expires before a sync is over, and nobody who brings room is taken in the meantime.
//
// Promise: When a load balancer fails and the other tables have no room for its copies, replicated connections are
// kept until the ring changes again; then those without a copy may move.
func TestASyncEndsThoughThereIsNoRoom(t *testing.T) {
	config := DefaultConfig(2)
	config.Entries = 100
	f := newFleet(t, config, 4)
	for i := range 180 {
		f.packet(uint16(1+i%4), at(i, 180), Owner(i+1))
		f.deliverAll()
	}
	f.change(Change{Fail: []uint16{4}})
	delete(f.nodes, 4)
	f.settle()
	uncopied := uint64(0)
	for _, node := range f.nodes {
		uncopied += node.Counters.Uncopied
		for range config.Timeout + 4*config.Stagger {
			node.NextPeriod()
		}
		if entries, _ := node.Entries(); entries != 0 {
			t.Errorf("%d entries are left", entries)
		}
	}
	if uncopied == 0 {
		t.Error("there was room for all")
	}
	f.change(Change{Add: []uint16{5}})
}

func TestAFullTableKeepsWhatItHas(t *testing.T) {
	config := DefaultConfig(2)
	config.Entries = 10
	f := newFleet(t, config, 4)
	for i := range 200 {
		f.packet(uint16(1+i%4), at(i, 200), Owner(i+1))
		f.deliverAll()
	}
	full, refused := 0, uint64(0)
	for _, node := range f.nodes {
		entries, _ := node.Entries()
		if full += entries; entries > 10 {
			t.Errorf("%d entries", entries)
		}
		refused += node.Counters.Full
	}
	if full < 30 || refused == 0 || len(f.answers) > full {
		t.Errorf("%d entries, %d refused, %d answered", full, refused, len(f.answers))
	}
	for key := range f.answers { // connections that are known stay as they are
		for id := range f.nodes {
			f.packet(id, key, 999)
		}
		f.deliverAll()
	}
}

func TestAFullCacheStillForwards(t *testing.T) {
	config := DefaultConfig(2)
	config.Cached = 1
	f := newFleet(t, config, 5)
	for i := range 20 {
		f.packet(1, at(2*i+1, 40), Owner(i+1))
		f.deliverAll()
	}
	if _, cached := f.nodes[1].Entries(); len(f.answers) != 20 || cached != 1 {
		t.Errorf("%d answers, %d cached", len(f.answers), cached)
	}
}
