package daemon_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// besideAgent is the role, and the instance, of an agent that has a load balancer on its host.
const besideAgent = "beside-agent"

const bothFile = `
keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: 1
  cookie: {1: 00112233445566778899aabbccddeeff}
services:
  - {name: web, vip: 198.51.100.10, ports: [80], dispatch: rr, forward: %s, servers: [{name: s1, address: 10.9.0.1, id: 1}]}
`

// bothHost is a load balancer and its only server, with the VIP on lo. Its peer is the client.
type bothHost struct {
	*agentHost // the server
	lb         *lbHost
}

func newBothHost(t *testing.T, forward string) *bothHost {
	t.Helper()
	balancer := newHost(t, "lb", []string{"10.9.0.1/24"}, []string{"10.9.0.2/24"})
	vip := netip.MustParsePrefix("198.51.100.10/32")
	require(t, balancer.space.AddAddress("lo", vip))
	require(t, balancer.peer.Route(vip, 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.1"), Interface: "eth0"}))
	balancer.write(fmt.Sprintf(bothFile, forward))
	server := &host{t: t, role: besideAgent, dir: balancer.dir, space: balancer.space, peer: balancer.peer}
	server.client = api.NewClient(api.SocketPath(server.runDir(), besideAgent))
	t.Cleanup(func() {
		server.end()
		require(t, server.remove(besideAgent))
		if t.Failed() {
			t.Log(server.output.String())
		}
	})
	return &bothHost{&agentHost{host: server}, &lbHost{balancer}}
}

func (h *bothHost) awaitBoth(when string) {
	h.t.Helper()
	h.await(when+" the agent to be ready", func(s api.AgentStatus) bool { return s.Ready && s.Interfaces["eth0"] == "native" })
	h.lb.await(when+" the load balancer to be ready", func(s api.LBStatus) bool { return s.Ready && s.Interfaces["eth0"] == "native" })
}

// expectTaken sends over new connections that the load balancer gives to the agent, which marks them.
func (h *bothHost) expectTaken(when string) {
	h.t.Helper()
	before, by := h.counters()["decapsulated"], h.lb.counter("forwarded_by_cookie")
	for range 3 {
		exchange(h.t, h.dial())
	}
	if after := h.counters()["decapsulated"]; after < before+600 {
		h.t.Errorf("%s the agent has decapsulated %d packets of 3 connections", when, after-before)
	}
	if after := h.lb.counter("forwarded_by_cookie"); after < by+600 {
		h.t.Errorf("%s %d packets of 3 connections were forwarded by cookie", when, after-by)
	}
}

// Whoever comes second, ends, is killed or comes back: connections live on, and new ones are taken.
func TestALoadBalancerAndAnAgentShareADevice(t *testing.T) {
	for _, forward := range []string{"ipip", "gue"} {
		t.Run(forward, func(t *testing.T) {
			noRaces(t)
			t.Parallel()
			h := newBothHost(t, forward)
			h.lb.start()
			h.lb.await("what is missing", func(s api.LBStatus) bool {
				return strings.Contains(fmt.Sprint(s.Problems), "it is this host, and no agent runs here")
			})
			h.start()
			h.awaitBoth("at first")
			living := h.echo()
			exchange(t, living)
			h.expectTaken("at first")
			for round, daemon := range []*host{h.lb.host, h.host, h.lb.host} {
				when := fmt.Sprintf("after %s was killed (%d)", daemon.role, round)
				daemon.kill()
				exchange(t, living)
				daemon.start()
				h.awaitBoth(when)
				exchange(t, living)
				h.expectTaken(when)
			}
			h.lb.kill()
			require(t, h.lb.remove("test"))
			exchange(t, living)
			h.eventually("the agent's program has the hook again", func() bool { return h.program() != 0 })
			h.await("the agent to be ready alone", func(s api.AgentStatus) bool { return s.Ready && s.Interfaces["eth0"] == "native" })
			h.lb.start() // the agent has the hook
			h.awaitBoth("with the load balancer in front again")
			exchange(t, living)
			h.expectTaken("with the load balancer in front again")
			h.kill()
			require(t, h.remove(besideAgent))
			h.lb.await("the agent to be missed", func(s api.LBStatus) bool { return strings.Contains(fmt.Sprint(s.Problems), "no agent runs here") })
			if h.lb.process.Process.Signal(unix.Signal(0)) != nil {
				t.Error("the load balancer has ended")
			}
			h.start()
			h.awaitBoth("with the agent back")
			h.expectTaken("with the agent back")
		})
	}
}
