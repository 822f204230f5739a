package checks

import (
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
		if ports := checkedPorts(s); ports == nil || slices.Contains(ports, 443) != test.tunnel {
			t.Errorf("check %s of a service by %s: ports %v", test.check, test.protocol, ports)
		}
	}
}
