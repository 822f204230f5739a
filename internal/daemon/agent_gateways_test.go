package daemon_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/bfd"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

const functionTable = 4242 // of role function-agent

// functionFile names a load balancer that lives and one that does not.
const functionFile = `
keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: 1
  cookie: {1: 00112233445566778899aabbccddeeff}
tunnels_from: [10.9.0.1, 10.9.0.7, 192.0.2.9]
services:
  - {name: gateway, protocol: any, affinity: hash, destinations: 0.0.0.0/0, servers: [{name: nat1, address: 10.9.0.2, id: 1}]}
`

// answersAsLB has the peer answer BFD as a load balancer for so long, if it is not ended.
func (h *agentHost) answersAsLB() (answer func(long time.Duration)) {
	h.t.Helper()
	var reflector *bfd.Reflector
	pins := progtest.Pins(h.t) + "/peer"
	require(h.t, h.peer.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err == nil {
			reflector, err = bfd.Open(pins)
		}
		if err == nil {
			err = reflector.Follow(nil, []bfd.Session{{Neighbor: netip.MustParseAddr("10.9.0.2"), Interval: 100 * time.Millisecond, Multiplier: 3}}, []int{device.Index})
		}
		return err
	}))
	h.t.Cleanup(func() {
		reflector.Close()
		require(h.t, h.peer.Do(func() error { return bfd.Remove(pins) }))
	})
	return func(long time.Duration) { require(h.t, reflector.Answer(long)) }
}

// gatewayRoutes are those of the table of gateways, as text.
func (h *agentHost) gatewayRoutes() (text string) {
	h.t.Helper()
	require(h.t, h.space.Do(func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: functionTable}, netlink.RT_FILTER_TABLE)
		for i := range routes {
			text += routes[i].String() + "\n"
		}
		return err
	}))
	return text
}

// Promise: A network function sends to the load balancers that answer its BFD, to the last that did if none does, and with --detach to none.
func TestANetworkFunctionSendsToLoadBalancersThatAnswer(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := &agentHost{host: newHost(t, "function-agent", []string{"10.9.0.2/24"}, []string{"10.9.0.1/24"})}
	answer := h.answersAsLB()
	h.write(functionFile)
	h.start()
	none := func(s api.AgentStatus) bool {
		return len(s.Gateways) == 2 && !s.Gateways[0].Answers && says(s.Problems, "none of 10.9.0.1, 10.9.0.7 answers BFD")
	}
	h.await("that none answers", none)
	if text := h.gatewayRoutes(); text != "" {
		t.Errorf("a route to whom nobody has heard: %s", text)
	}
	answer(time.Hour)
	lives := func(s api.AgentStatus) bool {
		return len(s.Gateways) == 2 && s.Gateways[0].Answers && s.Gateways[0].Used && s.Gateways[0].Heard != nil && s.Gateways[0].Table == functionTable &&
			!s.Gateways[1].Answers && !s.Gateways[1].Used && s.Gateways[1].Heard == nil && !says(s.Problems, "gateways:")
	}
	h.await("the load balancer", lives)
	leads := func(when string) {
		t.Helper()
		if text := h.gatewayRoutes(); !strings.Contains(text, "10.9.0.1") || strings.Contains(text, "10.9.0.7") {
			t.Errorf("%s: %q", when, text)
		}
	}
	leads("one lives")

	second := &agentHost{host: newDaemon(t, "function-agent", h.space)} // in the same network namespace
	second.write(functionFile)
	second.start()
	if err := second.wait(); err == nil || !strings.Contains(second.output.String(), "another agent with --gateway-table") {
		t.Errorf("%v: %s", err, second.output.String())
	}
	leads("another agent has tried to begin")

	answer(0)
	h.await("that it is not answered", func(s api.AgentStatus) bool { return none(s) && s.Gateways[0].Used && s.Gateways[0].Heard != nil })
	leads("none answers")
	answer(time.Hour)
	h.await("the load balancer again", lives)
	h.kill()
	leads("the agent is dead")
	require(t, h.remove("test"))
	if text := h.gatewayRoutes(); text != "" {
		t.Errorf("left: %s", text)
	}
}
