package checks

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// A check goes by the tunnel where the server's agent unpacks what it speaks.
func TestChecksGoByTheTunnelToPortsOfTheirProtocol(t *testing.T) {
	for _, test := range []struct {
		protocol model.Protocol
		check    model.Check
		tunnel   bool
	}{
		{model.ProtocolTCP, model.CheckTCP, true}, {model.ProtocolTCP, model.CheckHTTP, true}, {model.ProtocolTCP, model.CheckTLS, true},
		{model.ProtocolUDP, model.CheckQUIC, true}, {model.ProtocolUDP, model.CheckTCP, false}, {model.ProtocolUDP, model.CheckHTTP, false},
	} {
		s := &model.Service{Protocol: test.protocol, Ports: []uint16{443}, Health: model.Health{Check: test.check}}
		if ports := checkedPorts(s, netip.Addr{}, nil); ports == nil || slices.Contains(ports, 443) != test.tunnel {
			t.Errorf("check %s of a service by %s: ports %v", test.check, test.protocol, ports)
		}
	}
}

// A TCP check of a UDP service goes by the tunnel to a port that another service with its VIP has on the same server.
func TestChecksGoByTheTunnelToPortsOfOtherServicesWithTheVIP(t *testing.T) {
	vip, server, elsewhere := netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("10.0.0.12"), netip.MustParseAddr("10.0.0.13")
	dns := model.Service{VIP: vip, Protocol: model.ProtocolUDP, Ports: []uint16{53}, Health: model.Health{Check: model.CheckTCP, Port: 80}}
	web := model.Service{VIP: vip, Protocol: model.ProtocolTCP, Ports: []uint16{80}, Servers: []model.Server{{Address: server, State: model.StateActive}}}
	foreign := web
	foreign.VIP = netip.MustParseAddr("198.51.100.11")
	for _, test := range []struct {
		at     netip.Addr
		all    []model.Service
		tunnel bool
	}{
		{server, []model.Service{dns, web}, true}, {elsewhere, []model.Service{dns, web}, false}, {server, []model.Service{dns, foreign}, false},
	} {
		if ports := checkedPorts(&dns, test.at, test.all); slices.Contains(ports, 80) != test.tunnel {
			t.Errorf("at %s: ports %v, through the tunnel %v wanted", test.at, ports, test.tunnel)
		}
	}
}
