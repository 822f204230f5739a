package daemon_test

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// unmarkedHost is a load balancer whose peer serves the VIP and has no agent: its answers carry its own clock, and no cookie.
type unmarkedHost struct{ *lbHost }

func newUnmarkedHost(t *testing.T) *unmarkedHost {
	t.Helper()
	h := &unmarkedHost{newLBHost(t)}
	vip := netip.MustParsePrefix("198.51.100.10/32")
	require(t, h.peer.AddAddress("lo", vip))
	require(t, h.space.Route(vip, 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.2"), Interface: "eth0"}))
	var listener net.Listener
	require(t, h.peer.Do(func() (err error) {
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		listener, err = config.Listen(t.Context(), "tcp", "198.51.100.10:80")
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	return h
}

// serve writes the file with so many servers.
func (h *unmarkedHost) serve(affinity, dispatch string, servers int) (sum string) {
	h.t.Helper()
	keys, _, _ := strings.Cut(lbFile, "services:")
	var list []string
	for id := 1; id <= servers; id++ {
		list = append(list, fmt.Sprintf("{name: s%d, address: 10.9.0.%d, id: %d}", id, id+1, id))
	}
	return h.write(keys + fmt.Sprintf("services:\n  - {name: web, vip: 198.51.100.10, ports: [80], forward: l2, affinity: %s, dispatch: %s, "+
		"health: {check: tcp, interval: 500ms, timeout: 500ms}, servers: [%s]}\n", affinity, dispatch, strings.Join(list, ", ")))
}

func TestAServerThatDoesNotMarkIsUnhealthyAndAProblem(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newUnmarkedHost(t)
	h.serve("cookie", "maglev", 1)
	h.start()
	const cause, effect = "service web: server s1: the cookie in its answer is not its own", "service web: no server is healthy"
	status := h.await("the problem and what comes of it", func(s api.LBStatus) bool {
		said := strings.Join(s.Problems, "\n")
		return len(s.Problems) == 2 && strings.Contains(said, cause) && strings.Contains(said, effect)
	})
	if !strings.Contains(status.Problems[0], cause) {
		t.Errorf("the effect is listed before its cause: %q", status.Problems)
	}
	if !strings.Contains(status.Problems[1], "new connections go to 1 server that fails its checks (all_down: keep)") {
		t.Errorf("the effect is %q", status.Problems[1])
	}
	if !status.Ready {
		t.Errorf("for one server: not ready: %q", status.NotReady)
	}
	if problems, _ := h.examine(); len(problems) != 2 || !strings.Contains(strings.Join(problems, "\n"), "not its own") {
		t.Errorf("doctor finds %q", problems)
	}
	h.forceFile(h.serve("hash", "maglev", 1))
	h.await("health without cookies", func(s api.LBStatus) bool { return len(s.Problems) == 0 })
}

// forceFile has the daemon take a file that breaks connections.
func (h *lbHost) forceFile(sum string) {
	h.t.Helper()
	_, err := h.post(reloadByForce, nil)
	require(h.t, err)
	h.awaitFile(sum)
}

// Promise: A load balancer is not ready if it can read no cookie, and those of most servers, at least two, are
// foreign.
func TestALoadBalancerThatReadsNobodysCookieIsNotReady(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newUnmarkedHost(t)
	h.serve("cookie", "maglev", 2)
	h.start()
	h.await("it is not ready", func(s api.LBStatus) bool {
		return !s.Ready && len(s.NotReady) == 1 && strings.Contains(s.NotReady[0], "those of 2 are foreign: give this load balancer the keys.cookie")
	})
	if code := h.health(); code != http.StatusServiceUnavailable {
		t.Errorf("/healthz says %d", code)
	}
	if problems, _ := h.examine(); !strings.Contains(strings.Join(problems, "\n"), "is not ready: no server's cookie can be read") {
		t.Errorf("doctor finds %q", problems)
	}
	h.forceFile(h.serve("hash", "maglev", 2))
	h.await("it is ready without cookies", func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 })
}

// Connections that dispatch puts where placement would not are lost with the next packet; the others get on.
func TestAServerThatLosesItsTimestampsIsAProblemAndUnhealthyWhereItsConnectionsBreak(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newUnmarkedHost(t)
	require(t, h.peer.Sysctl("net/ipv4/tcp_timestamps", "0"))
	h.serve("cookie", "maglev", 2)
	h.start()
	for _, test := range []struct{ dispatch, health string }{{"maglev", "healthy"}, {"rr", "unhealthy"}, {"hash", "healthy"}} {
		h.awaitFile(h.serve("cookie", test.dispatch, 2))
		h.await("the problems with "+test.dispatch, func(s api.LBStatus) bool {
			const problem = "service web: server s1: its answer has no TCP timestamps"
			list, err := h.client.Fleet().ListServers(t.Context(), &ballastv1.ListServersRequest{})
			require(t, err)
			for _, server := range list.Servers {
				if server.Health != test.health || !strings.Contains(server.HealthDetail, "tcp_timestamps=1") {
					return false
				}
			}
			return s.Ready && strings.Contains(strings.Join(s.Problems, "\n"), problem)
		})
	}
	if problems, _ := h.examine(); !strings.Contains(strings.Join(problems, "\n"), "tcp_timestamps=1") {
		t.Errorf("doctor finds %q", problems)
	}
}
