package daemon_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/netspace"
)

// The peer serves the VIP and has no agent: its answers carry its own clock, and no cookie.
func TestAServerThatDoesNotMarkIsUnhealthyAndAProblem(t *testing.T) {
	h := newLBHost(t)
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
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	keys, _, _ := strings.Cut(lbFile, "services:")
	service := "services:\n  - {name: web, vip: 198.51.100.10, ports: [80], forward: l2, affinity: AFFINITY, dispatch: maglev, " +
		"health: {check: tcp, interval: 500ms, timeout: 500ms}, servers: [{name: s1, address: 10.9.0.2, id: 1}]}\n"
	h.write(keys + strings.Replace(service, "AFFINITY", "cookie", 1))
	h.start()
	h.await("the problem", func(s api.LBStatus) bool {
		return len(s.Problems) == 1 && strings.Contains(s.Problems[0], "service web: server s1: connect: the cookie in its answer is not its own")
	})
	if problems, _ := h.examine(); len(problems) != 1 || !strings.Contains(problems[0], "not its own") {
		t.Errorf("doctor finds %q", problems)
	}
	h.awaitFile(h.write(keys + strings.Replace(service, "AFFINITY", "hash", 1)))
	h.await("health without cookies", func(s api.LBStatus) bool { return len(s.Problems) == 0 })
}
