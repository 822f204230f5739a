package model

import (
	"net/netip"
	"testing"
)

// A check goes by the tunnel where the server's agent unpacks what it speaks.
func TestChecksGoByTheTunnelToPortsOfTheirProtocol(t *testing.T) {
	for _, test := range []struct {
		protocol Protocol
		check    Check
		tunnel   bool
	}{
		{ProtocolTCP, CheckTCP, true}, {ProtocolTCP, CheckHTTP, true}, {ProtocolTCP, CheckTLS, true},
		{ProtocolUDP, CheckQUIC, true}, {ProtocolUDP, CheckTCP, false}, {ProtocolUDP, CheckHTTP, false},
	} {
		s := &Service{Protocol: test.protocol, Ports: []uint16{443}, Health: Health{Check: test.check}}
		if ports := s.CheckedPorts(netip.Addr{}, nil); ports == nil || InPorts(ports, 443) != test.tunnel {
			t.Errorf("check %s of a service by %s: ports %v", test.check, test.protocol, ports)
		}
	}
}

// A TCP check of a UDP service goes by the tunnel to a port that another service with its VIP has on the same server.
func TestChecksGoByTheTunnelToPortsOfOtherServicesWithTheVIP(t *testing.T) {
	vip, server, elsewhere := netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("10.0.0.12"), netip.MustParseAddr("10.0.0.13")
	dns := Service{VIP: vip, Protocol: ProtocolUDP, Ports: []uint16{53}, Health: Health{Check: CheckTCP, Port: 80}}
	web := Service{VIP: vip, Protocol: ProtocolTCP, Ports: []uint16{80}, Servers: []Server{{Address: server, State: StateActive}}}
	foreign := web
	foreign.VIP = netip.MustParseAddr("198.51.100.11")
	for _, test := range []struct {
		at     netip.Addr
		all    []Service
		tunnel bool
	}{
		{server, []Service{dns, web}, true}, {elsewhere, []Service{dns, web}, false}, {server, []Service{dns, foreign}, false},
	} {
		if ports := dns.CheckedPorts(test.at, test.all); InPorts(ports, 80) != test.tunnel {
			t.Errorf("at %s: ports %v, through the tunnel %v wanted", test.at, ports, test.tunnel)
		}
	}
}
