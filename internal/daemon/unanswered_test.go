package daemon_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

var handshakeFile = strings.NewReplacer("name: dns", "name: web", "ports: [53], protocol: udp", "ports: [80]").Replace(datagramFile)

// connect sends so many SYNs to the VIP, each of another connection.
func (n *datagramNet) connect(count int) {
	n.t.Helper()
	require(n.t, n.client.Do(func() error {
		for range count {
			socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			err = unix.Connect(socket, &unix.SockaddrInet4{Port: 80, Addr: [4]byte{198, 51, 100, 10}})
			if unix.Close(socket); err != nil && !errors.Is(err, unix.EINPROGRESS) {
				return err
			}
		}
		return nil
	}))
}

// Checks come from the load balancer, to which the server has a route whatever happens to the one to clients.
//
// Promise: An agent reports a problem when fewer than a quarter of its clients' SYNs within 10 s are answered.
// Also held by TestEachBrokenSettingIsFoundAlone.
func TestAnAgentSaysThatClientsGetNoAnswer(t *testing.T) {
	t.Parallel()
	noRaces(t)
	n := newDatagramNet(t, handshakeFile)
	for _, server := range n.servers {
		awaitStatus(server, "the agent", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 })
	}
	for _, name := range []string{"s1", "s2"} {
		n.awaitServer(name, "healthy")
	}
	says := func(s api.AgentStatus) bool {
		return slices.ContainsFunc(s.Problems, func(p string) bool { return strings.Contains(p, "SYNs that came within 10 s were answered") })
	}
	s2 := n.servers[1]
	_, clients, err := net.ParseCIDR("10.9.0.0/16")
	require(t, err)
	require(t, s2.onDeviceNamed("eth0", func(device netlink.Link) error {
		return netlink.RouteDel(&netlink.Route{LinkIndex: device.Attrs().Index, Dst: clients})
	}))
	awaitStatus(s2, "the agent, whose host has no route to clients", func(s api.AgentStatus) bool {
		n.connect(8)
		return says(s) && s.Ready
	})
	n.awaitServer("s2", "healthy") // why the agent has to say it
	awaitStatus(n.servers[0], "the agent, whose host has one", func(s api.AgentStatus) bool { return len(s.Problems) == 0 })

	require(t, s2.space.Route(netip.PrefixFrom(netip.MustParseAddr("10.9.0.0"), 16), 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.2.1"), Interface: "eth0"}))
	awaitStatus(s2, "the agent, whose host has its route again", func(s api.AgentStatus) bool { return len(s.Problems) == 0 })
}

// The kernel completes handshakes for an application that hangs.
//
// Promise: When an application hangs and its check is `tcp`, its agent reports a problem within about 15 s if
// clients wait and do not reset.
func TestAnAgentSaysThatAnApplicationAcceptsNothing(t *testing.T) {
	t.Parallel()
	noRaces(t)
	n := newDatagramNet(t, handshakeFile)
	for _, server := range n.servers {
		awaitStatus(server, "the agent", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 && len(s.Controllers) == 1 })
	}
	n.hung["s2"].Lock()
	for range 8 {
		require(t, n.client.Do(func() error {
			client, err := net.DialTimeout("tcp", "198.51.100.10:80", 10*time.Second)
			if err == nil {
				t.Cleanup(func() { client.Close() })
			}
			return err
		}))
	}
	awaitStatus(n.servers[1], "the agent, whose host's application hangs", func(s api.AgentStatus) bool {
		return s.Ready && slices.ContainsFunc(s.Problems, func(p string) bool {
			return strings.Contains(p, "service web: its accept queue has not become shorter")
		})
	})
	n.awaitServer("s2", "healthy") // why the agent has to say it
	awaitStatus(n.servers[0], "the agent, whose host's does not", func(s api.AgentStatus) bool { return len(s.Problems) == 0 })
	n.hung["s2"].Unlock()
	awaitStatus(n.servers[1], "the agent, whose host's accepts again", func(s api.AgentStatus) bool { return len(s.Problems) == 0 })
}
