package daemon_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/bfd"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/metricstest"
)

const functionTable = 4242 // of role function-agent

// functionFile names a load balancer that lives, one that does not, and one that is not on the link, for each family of addresses.
const functionFile = `
keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: 1
  cookie: {1: 00112233445566778899aabbccddeeff}
tunnels_from: [10.9.0.1, 10.9.0.7, 192.0.2.9, "fd09::1", "fd09::7", "2001:db8::9"]
services:
  - {name: gateway, protocol: any, affinity: hash, destinations: 0.0.0.0/0, servers: [{name: nat1, address: 10.9.0.2, id: 1}]}
  - {name: gateway6, protocol: any, affinity: hash, destinations: "::/0", servers: [{name: nat1, address: "fd09::2", id: 1}]}
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
			session := bfd.Session{Interval: 100 * time.Millisecond, Multiplier: 3}
			session4, session6 := session, session
			session4.Neighbor, session6.Neighbor = netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fd09::2")
			err = reflector.Follow(nil, []bfd.Session{session4, session6}, []int{device.Index})
		}
		return err
	}))
	h.t.Cleanup(func() {
		reflector.Close()
		require(h.t, h.peer.Do(func() error { return bfd.Remove(pins) }))
	})
	return func(long time.Duration) { require(h.t, reflector.Answer(long)) }
}

// gatewayRoutes are those of the table of gateways in one family, as text.
func (h *agentHost) gatewayRoutes(family int) (text string) {
	h.t.Helper()
	require(h.t, h.space.Do(func() error {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: functionTable}, netlink.RT_FILTER_TABLE)
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
	h := &agentHost{host: newHost(t, "function-agent", []string{"10.9.0.2/24", "fd09::2/64"}, []string{"10.9.0.1/24", "fd09::1/64"})}
	answer := h.answersAsLB()
	h.write(functionFile)
	h.start()
	all := []string{"10.9.0.1", "10.9.0.7", "fd09::1", "fd09::7"}
	// are reports whether both families have a load balancer that is as wanted, and one that never lived.
	are := func(s api.AgentStatus, as func(api.Gateway) bool) bool {
		for i, g := range s.Gateways {
			if i >= len(all) || g.Address != netip.MustParseAddr(all[i]) || g.Table != functionTable {
				return false
			}
			if dead := i%2 == 1; dead && (g.Answers || g.Used || g.Heard != nil) || !dead && !as(g) {
				return false
			}
		}
		return len(s.Gateways) == len(all)
	}
	silent := func(s api.AgentStatus) bool {
		return says(s.Problems, "none of 10.9.0.1, 10.9.0.7 answers BFD") && says(s.Problems, "none of fd09::1, fd09::7 answers BFD")
	}
	pages := func(when string, answering, routed int, want ...string) {
		t.Helper()
		var lines []string
		for _, family := range []string{"ipv4", "ipv6"} {
			lines = append(lines, fmt.Sprintf("ballast_agent_gateways_answering{family=%q} %d\n", family, answering), fmt.Sprintf("ballast_agent_gateways_routed{family=%q} %d\n", family, routed))
		}
		h.expectMetrics(when, lines...)
		metricstest.ExpectPages(t, when, want, metricstest.Scrape{"nat1": h.metrics()})
	}
	h.await("that none answers", func(s api.AgentStatus) bool {
		return silent(s) && are(s, func(g api.Gateway) bool { return !g.Answers && !g.Used && g.Heard == nil })
	})
	leads := func(when string, to4, to6 string) {
		t.Helper()
		for family, to := range map[int]string{netlink.FAMILY_V4: to4, netlink.FAMILY_V6: to6} {
			if text := h.gatewayRoutes(family); (text == "") != (to == "") || !strings.Contains(text, to) || strings.Contains(text, "10.9.0.7") || strings.Contains(text, "fd09::7") {
				t.Errorf("%s: %q instead of a route by %q", when, text, to)
			}
		}
	}
	leads("nobody was heard", "", "")
	pages("nobody was heard", 0, 0, "BallastNoGateway")
	answer(time.Hour)
	live := func(s api.AgentStatus) bool {
		return !says(s.Problems, "gateways:") && are(s, func(g api.Gateway) bool { return g.Answers && g.Used && g.Heard != nil })
	}
	h.await("the load balancer", live)
	leads("one lives", "10.9.0.1", "fd09::1")
	pages("one lives", 1, 1)

	second := &agentHost{host: newDaemon(t, "function-agent", h.space)} // in the same network namespace
	second.write(functionFile)
	second.start()
	if err := second.wait(); err == nil || !strings.Contains(second.output.String(), "another agent with --gateway-table") {
		t.Errorf("%v: %s", err, second.output.String())
	}
	leads("another agent has tried to begin", "10.9.0.1", "fd09::1")

	answer(0)
	h.await("that it is not answered", func(s api.AgentStatus) bool {
		return silent(s) && are(s, func(g api.Gateway) bool { return !g.Answers && g.Used && g.Heard != nil })
	})
	leads("none answers", "10.9.0.1", "fd09::1")
	pages("none answers", 0, 1, "BallastNoGateway")
	answer(time.Hour)
	h.await("the load balancer again", live)
	h.kill()
	leads("the agent is dead", "10.9.0.1", "fd09::1")
	require(t, h.remove("test"))
	leads("it is detached", "", "")
}
