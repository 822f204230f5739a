package model

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func speaker() Fleet {
	f := Fleet{Nodes: []Node{{Name: "lb1", BGP: BGP{AS: 64600, NeighborAS: 64512, Neighbors: []Neighbor{{Address: netip.MustParseAddr("192.0.2.1")}}}}}}
	f.ApplyDefaults()
	return f
}

func TestBGPThatCannotWorkIsRefusedWithTheReason(t *testing.T) {
	good := speaker()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, edit := range map[string]func(n *Node){
		"bgp.as: missing": func(n *Node) { n.BGP.AS = 0 },
		"bgp.neighbors: 0 neighbours: give the addresses": func(n *Node) { n.BGP.Neighbors, n.BGP.RouterID = nil, RouterID{netip.MustParseAddr("192.0.2.9")} },
		"bgp.neighbors[0]: its AS is missing":             func(n *Node) { n.BGP.NeighborAS = 0 },
		"bgp.neighbors[0]: fe80::1 is of one link alone": func(n *Node) {
			n.BGP.Neighbors[0].Address, n.BGP.RouterID = netip.MustParseAddr("fe80::1"), RouterID{netip.MustParseAddr("192.0.2.9")}
		},
		"bgp.neighbors[1]: 192.0.2.1 is named twice":    func(n *Node) { n.BGP.Neighbors = append(n.BGP.Neighbors, n.BGP.Neighbors[0]) },
		"bgp.router_id: missing: only a neighbour":      func(n *Node) { n.BGP.Neighbors[0].Address = netip.MustParseAddr("2001:db8::1") },
		"bgp.router_id: 2001:db8::1 is not a router id": func(n *Node) { n.BGP.RouterID = RouterID{netip.MustParseAddr("2001:db8::1")} },
		"bgp.hold_time: 1s is out of range":             func(n *Node) { n.BGP.HoldTime, n.BGP.Keepalive = Duration(time.Second), Duration(time.Second) },
		"bgp.hold_time: 3.5s: BGP counts seconds": func(n *Node) {
			n.BGP.HoldTime, n.BGP.Keepalive = Duration(3500*time.Millisecond), Duration(time.Second)
		},
		"bgp.keepalive: 2m0s is out of range":                        func(n *Node) { n.BGP.Keepalive = Duration(2 * time.Minute) },
		"bgp.restart_time: 2h0m0s is out of range":                   func(n *Node) { n.BGP.RestartTime = Duration(2 * time.Hour) },
		"bgp.ttl_security: multihop sends with another TTL":          func(n *Node) { n.BGP.Multihop, n.BGP.TTLSecurity = 2, 2 },
		"bgp.password_file: \"secret\" depends on where":             func(n *Node) { n.BGP.PasswordFile = "secret" },
		"bgp.listen_port: sessions with a password are not accepted": func(n *Node) { n.BGP.PasswordFile, n.BGP.ListenPort = "/etc/secret", 179 },
		"bgp.bfd: BFD here is that of one hop":                       func(n *Node) { n.BGP.Multihop, n.BGP.BFD = 2, BFD{Duration(300 * time.Millisecond), 3} },
		"bgp.bfd.interval: missing":                                  func(n *Node) { n.BGP.BFD.Multiplier = 3 },
		"bgp.bfd.interval: 1ms is out of range":                      func(n *Node) { n.BGP.BFD = BFD{Duration(time.Millisecond), 3} },
		"bgp: nodes of the second get what the first sends":          func(n *Node) { n.Tier, n.ID, n.Address = TierSecond, 1, netip.MustParseAddr("192.0.2.9") },
		"tier: missing, and so are bgp and l2":                       func(n *Node) { n.BGP = BGP{} },
		"address: only nodes of the second tier have one: remove it": func(n *Node) { n.Address = netip.MustParseAddr("192.0.2.9") },
	} {
		f := speaker()
		edit(&f.Nodes[0])
		if err := f.Validate(); err == nil || !strings.Contains(err.Error(), "nodes[0]."+want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
	draining := speaker()
	draining.Nodes[0].State = StateDraining
	if err := draining.Validate(); err != nil {
		t.Errorf("a load balancer with BGP cannot be drained: %v", err)
	}
	vip := speaker()
	vip.Services = []Service{NewService()}
	vip.Services[0].Name, vip.Services[0].VIP = "web", netip.MustParseAddr("192.0.2.1")
	if err := vip.Validate(); err == nil || !strings.Contains(err.Error(), "192.0.2.1 is the vip of service web") {
		t.Errorf("%v", err)
	}
}

func TestNeighboursAndCommunitiesAreReadAsTheyAreWritten(t *testing.T) {
	for _, text := range []string{"192.0.2.1", "192.0.2.1 as 1", "2001:db8::1 as 4294967295"} {
		if n, err := ParseNeighbor(text); err != nil || n.String() != text {
			t.Errorf("%q is %q, %v", text, n, err)
		}
	}
	for _, text := range []string{"0:0", "65535:65535", "no-export", "no-advertise", "blackhole"} {
		if c, err := ParseCommunity(text); err != nil || c.String() != text {
			t.Errorf("%q is %q, %v", text, c, err)
		}
	}
	for _, text := range []string{"", "router", "192.0.2.1 as", "192.0.2.1 as 0", "192.0.2.1 as 4294967296", "192.0.2.1/24", "192.0.2.1 64512"} {
		if n, err := ParseNeighbor(text); err == nil {
			t.Errorf("%q is %q", text, n)
		}
	}
	for _, text := range []string{"", "1", "1:", "65536:1", "1:65536", "-1:1", "1:2:3"} {
		if c, err := ParseCommunity(text); err == nil {
			t.Errorf("%q is %q", text, c)
		}
	}
}
