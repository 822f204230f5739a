package daemon_test

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
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
	mode       string // of both programs
}

func newBothHost(t *testing.T, forward, mode string) *bothHost {
	t.Helper()
	balancer := newHost(t, map[string]string{"native": "lb", "generic": "generic-lb"}[mode], []string{"10.9.0.1/24"}, []string{"10.9.0.2/24"})
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
	return &bothHost{&agentHost{host: server}, &lbHost{balancer}, mode}
}

func (h *bothHost) awaitBoth(when string) {
	h.t.Helper()
	h.await(when+" the agent to be ready", func(s api.AgentStatus) bool { return s.Ready && s.Interfaces["eth0"] == h.mode })
	h.lb.await(when+" the load balancer to be ready", func(s api.LBStatus) bool { return s.Ready && s.Interfaces["eth0"] == h.mode })
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

// retransmitted is how many segments the client has had to send again.
func retransmitted(t *testing.T, conn net.Conn) (segments uint32) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	require(t, err)
	require(t, raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		require(t, err)
		segments = info.Total_retrans
	}))
	return segments
}

// Whoever comes second, ends, is killed or comes back: connections live on and lose no packet, and new ones are taken.
//
// Promise: A load balancer and an agent share an interface, and each comes, goes and is killed without a lost packet of
// living connections.
func TestALoadBalancerAndAnAgentShareADevice(t *testing.T) {
	for _, way := range [][2]string{{"ipip", "native"}, {"gue", "native"}, {"ipip", "generic"}} {
		t.Run(strings.Join(way[:], " "), func(t *testing.T) {
			noRaces(t)
			t.Parallel()
			h := newBothHost(t, way[0], way[1])
			h.lb.start()
			h.lb.await("what is missing", func(s api.LBStatus) bool {
				return !s.Ready && strings.Contains(fmt.Sprint(s.Problems), "it is this host, and no agent runs here")
			})
			h.start()
			h.awaitBoth("at first")
			living := h.echo()
			h.expectTaken("at first")
			stop, stopped := make(chan bool), make(chan bool)
			go func() { // while all that follows goes on
				defer close(stopped)
				for end := false; !end; {
					exchange(t, living)
					select {
					case <-stop:
						end = true
					default:
					}
				}
			}()
			before := retransmitted(t, living)
			for _, daemon := range []*host{h.lb.host, h.host, h.lb.host} {
				when := fmt.Sprintf("after %s was killed", daemon.role)
				daemon.kill()
				daemon.start()
				h.awaitBoth(when)
				h.expectTaken(when)
			}
			h.lb.kill()
			require(t, h.lb.remove("test"))
			if h.program() == 0 {
				t.Error("no program is on the device when the load balancer has left")
			}
			h.await("the agent to be ready alone", func(s api.AgentStatus) bool { return s.Ready && s.Interfaces["eth0"] == h.mode })
			h.lb.start() // the agent has the hook
			h.awaitBoth("with the load balancer in front again")
			h.expectTaken("with the load balancer in front again")
			front := h.program()
			h.kill()
			h.start()
			h.awaitBoth("with the agent behind it again")
			h.expectTaken("with the agent behind it again")
			if h.program() != front {
				t.Error("the agent has taken the device from the load balancer")
			}
			if pins, _ := filepath.Glob(filepath.Join(h.runDir(), "bpf", besideAgent, "link-xdp-*")); len(pins) > 0 {
				t.Errorf("the agent has pinned the load balancer's link: %v", pins)
			}
			close(stop)
			<-stopped
			if after := retransmitted(t, living); after != before {
				t.Errorf("%d segments were sent again", after-before)
			}
			h.kill()
			require(t, h.remove(besideAgent))
			h.lb.await("the agent to be missed", func(s api.LBStatus) bool { return strings.Contains(fmt.Sprint(s.Problems), "no agent runs here") })
			h.start()
			h.awaitBoth("with the agent back")
			h.expectTaken("with the agent back")
			bpf := filepath.Join(h.runDir(), "bpf")
			require(t, unix.Unmount(bpf, unix.MNT_DETACH))
			h.eventually("the pins that both share", func() bool {
				claims, _ := filepath.Glob(filepath.Join(bpf, "host~*", "behind-*-"+besideAgent))
				return len(claims) == 1
			})
			h.awaitBoth("with pins made again")
			h.expectTaken("with pins made again")
			h.kill()
			h.start()
			h.awaitBoth("with pins made again, and the agent")
			h.expectTaken("with pins made again, and the agent")
		})
	}
}

func TestWhatCannotBeGivenToAServerOnThisHostIsSaid(t *testing.T) {
	noRaces(t)
	t.Parallel()
	h := newBothHost(t, "nat, return: through", "native")
	h.start()
	h.lb.start()
	h.lb.await("the reason", func(s api.LBStatus) bool {
		return strings.Contains(fmt.Sprint(s.Problems), "service web: server s1 is this host, and its packets are lost: it needs forward ipip, gue or srv6")
	})
}
