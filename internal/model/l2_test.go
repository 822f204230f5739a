package model

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestL2ThatCannotWorkIsRefusedWithTheReason(t *testing.T) {
	announcer := func() *Fleet {
		f := &Fleet{Nodes: []Node{{Name: "lb1", L2: L2{Interface: "eth0"}}}}
		f.ApplyDefaults()
		return f
	}
	for want, edit := range map[string]func(n *Node){
		"l2.interface: missing":                           func(n *Node) { n.L2.Interface = "" },
		"l2.interface: \"eth0 eth1\" is no name":          func(n *Node) { n.L2.Interface = "eth0 eth1" },
		"l2.interface: \"../eth0\" is no name":            func(n *Node) { n.L2.Interface = "../eth0" },
		"l2.interface: \"a-name-of-16-byt\" is no name":   func(n *Node) { n.L2.Interface = "a-name-of-16-byt" },
		"l2.interface: nobody else is on lo":              func(n *Node) { n.L2.Interface = "lo" },
		"l2.announce_delay: 1ms is out of range":          func(n *Node) { n.L2.Delay = Duration(time.Millisecond) },
		"l2: the node has bgp":                            func(n *Node) { n.BGP = BGP{AS: 64600} },
		"l2: nodes of the second get what the first send": func(n *Node) { n.Tier, n.ID, n.Address = TierSecond, 1, netip.MustParseAddr("192.0.2.9") },
	} {
		f := announcer()
		edit(&f.Nodes[0])
		if err := f.Validate(); err == nil || !strings.Contains(err.Error(), "nodes[0]."+want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
	draining := announcer()
	draining.Nodes[0].State = StateDraining
	if err := draining.Validate(); err != nil || draining.Nodes[0].L2.Delay != DefaultAnnounce {
		t.Errorf("%v, %+v", err, draining.Nodes[0].L2)
	}
}
