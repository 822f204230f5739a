package daemon_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// datagramFile has a service by UDP whose checks can only be direct: no service has the VIP's TCP port 80.
const datagramFile = `
keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: 1
  cookie: {1: 00112233445566778899aabbccddeeff}
tunnels_from: [10.9.1.1, 10.9.2.1]
services:
  - {name: dns, vip: 198.51.100.10, ports: [53], protocol: udp, health: {check: tcp, port: 80, interval: 500ms}, servers: [
      {name: s1, address: 10.9.1.2, id: 1}, {name: s2, address: 10.9.2.2, id: 2}]}
`

// datagramNet is a client, a load balancer between it and two servers, and the servers' agents, which report to the load balancer.
type datagramNet struct {
	*lbHost
	client  *netspace.Space
	servers [2]*host
	ports   uint16                 // of the client, taken so far
	hung    map[string]*sync.Mutex // servers' applications accept nothing while it is held
}

func newDatagramNet(t *testing.T, file string) *datagramNet {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	n := &datagramNet{lbHost: &lbHost{newDaemon(t, "heard-lb", newSpace(t, "heard-lb"))}, client: newSpace(t, "client"), ports: 20000, hung: map[string]*sync.Mutex{}}
	n.plug(n.client, 0)
	vip := netip.MustParsePrefix("198.51.100.10/32")
	require(t, n.client.Route(vip, 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.1"), Interface: "eth0"}))
	require(t, n.space.Route(vip, 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.2"), Interface: "eth0"})) // the way out of checks
	require(t, n.space.Sysctl("net/ipv4/ip_forward", "1"))
	tls := filepath.Join(n.dir, "tls")
	require(t, errors.Join(pki.Init(tls, pki.DefaultAuthorityLife, false),
		pki.Issue(tls, pki.Request{Role: pki.LB, Name: "lb1", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.1")}})))
	for i := range n.servers {
		name := fmt.Sprintf("s%d", i+1)
		server := newDaemon(t, name+"-agent", newSpace(t, name))
		n.servers[i] = server
		n.plug(server.space, i+1)
		require(t, server.space.AddAddress("lo", vip))
		require(t, server.space.Route(netip.MustParsePrefix("10.9.0.0/16"), 0, netspace.NextHop{Gateway: netip.MustParseAddr(fmt.Sprintf("10.9.%d.1", i+1)), Interface: "eth0"}))
		require(t, pki.Issue(tls, pki.Request{Role: pki.Agent, Name: name}))
		require(t, os.Symlink(tls, filepath.Join(server.dir, "tls")))
		n.answer(name, server.space)
		server.write(file)
		server.start()
	}
	n.write(file)
	n.start()
	return n
}

// plug connects a namespace with the load balancer's device of that number.
func (n *datagramNet) plug(space *netspace.Space, i int) {
	n.t.Helper()
	prefix := func(last int) []netip.Prefix {
		return []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.9.%d.%d/24", i, last))}
	}
	require(n.t, netspace.Connect(netspace.End{Space: n.space, Interface: fmt.Sprintf("eth%d", i), Addresses: prefix(1)},
		netspace.End{Space: space, Interface: "eth0", Addresses: prefix(2)}))
	if i > 0 { // servers' agents send by XDP, too
		require(n.t, n.space.Do(func() error {
			device, err := net.InterfaceByName(fmt.Sprintf("eth%d", i))
			if err != nil {
				return err
			}
			return attachPass(device)
		}))
	}
}

// answer has a server say its name to every datagram for the VIP, whether it has that address or not, and accept what checks connect to.
func (n *datagramNet) answer(name string, space *netspace.Space) {
	n.t.Helper()
	var socket net.PacketConn
	var listener net.Listener
	require(n.t, space.Do(func() (err error) {
		if socket, err = net.ListenPacket("udp", "198.51.100.10:53"); err == nil {
			listener, err = net.Listen("tcp", "0.0.0.0:80")
		}
		return err
	}))
	n.t.Cleanup(func() { socket.Close(); listener.Close() })
	hung := &sync.Mutex{}
	n.hung[name] = hung
	go func() {
		for buffer := make([]byte, 100); ; {
			_, from, err := socket.ReadFrom(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = socket.WriteTo([]byte(name), from)
			}
		}
	}()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
			hung.Lock()
			hung.Unlock() //lint:ignore SA2001 it waits while the test holds the lock
		}
	}()
}

// ask sends a datagram from each of so many new ports, and counts who has answered; "" is nobody, within a second of the last.
func (n *datagramNet) ask(count int) map[string]int {
	n.t.Helper()
	var sockets []net.Conn
	for range count {
		n.ports++
		require(n.t, n.client.Do(func() error {
			socket, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: int(n.ports)}, &net.UDPAddr{IP: net.IPv4(198, 51, 100, 10), Port: 53})
			sockets = append(sockets, socket)
			return err
		}))
		_, err := sockets[len(sockets)-1].Write([]byte("who"))
		require(n.t, err)
	}
	answers, deadline := map[string]int{}, time.Now().Add(time.Second)
	for _, socket := range sockets {
		buffer := make([]byte, 100)
		require(n.t, socket.SetReadDeadline(deadline))
		length, _ := socket.Read(buffer)
		answers[string(buffer[:length])]++
		socket.Close()
	}
	return answers
}

// awaitServer waits until the load balancer says of a server what is wanted.
func (n *datagramNet) awaitServer(name, health string, details ...string) {
	n.t.Helper()
	await.Nil(n.t, name+" to be "+health, func() error {
		list, err := n.lbHost.client.Fleet().ListServers(n.t.Context(), &ballastv1.ListServersRequest{})
		if err != nil {
			return err
		}
		for _, server := range list.Servers {
			if server.Server.Name != name {
				continue
			}
			for _, detail := range details {
				if !strings.Contains(server.HealthDetail, detail) {
					err = fmt.Errorf("it is %s: %q lacks %q", server.Health, server.HealthDetail, detail)
				}
			}
			if server.Health != health {
				err = fmt.Errorf("it is %s: %q", server.Health, server.HealthDetail)
			}
		}
		return err
	})
}

// awaitAnswers waits until those to 64 new flows are as wanted: tables follow health a little later.
func (n *datagramNet) awaitAnswers(when string, wanted func(by map[string]int) bool) {
	n.t.Helper()
	await.Nil(n.t, "answers "+when, func() error {
		if by := n.ask(64); !wanted(by) {
			return fmt.Errorf("they are by %v", by)
		}
		return nil
	})
}

// A direct check sees neither the tunnel nor the VIP: what the agent sees of them counts.
//
// Promise: With `check: none` or a direct check, a server gets no new connections as soon as its connected agent
// finds that it loses packets, and `all_down` holds as for checks.
// Also held by TestWhatAnAgentFindsLostCountsWhereNoCheckGoesThroughTheTunnel.
func TestAUDPServerThatLosesPacketsGetsNoNewFlows(t *testing.T) {
	t.Parallel()
	noRaces(t)
	n := newDatagramNet(t, datagramFile)
	n.await("the load balancer", func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 })
	for _, server := range n.servers {
		awaitStatus(server, "the agent", func(s api.AgentStatus) bool { return s.Ready && len(s.Controllers) == 1 })
	}
	for _, name := range []string{"s1", "s2"} {
		n.awaitServer(name, "healthy", "direct: port 80 is not the service's")
	}
	n.awaitAnswers("by both", func(by map[string]int) bool { return by["s1"] >= 10 && by["s2"] >= 10 && by[""] == 0 })

	s2 := n.servers[1]
	vip, err := netlink.ParseAddr("198.51.100.10/32")
	require(t, err)
	require(t, s2.onDeviceNamed("lo", func(loopback netlink.Link) error { return netlink.AddrDel(loopback, vip) }))
	n.awaitServer("s2", "unhealthy", "198.51.100.10 is not an address of this host: ip address add 198.51.100.10/32 dev lo (agent s2)", "direct: port 80")
	n.awaitServer("s1", "healthy")
	n.awaitAnswers("without the VIP on s2", func(by map[string]int) bool { return by["s1"] == 64 })

	require(t, s2.onDeviceNamed("lo", func(loopback netlink.Link) error { // which takes its packets without the address
		return netlink.RouteAdd(&netlink.Route{LinkIndex: loopback.Attrs().Index, Dst: vip.IPNet, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST})
	}))
	n.awaitServer("s2", "healthy", "direct: port 80")
	n.awaitAnswers("with a local route to the VIP on s2", func(by map[string]int) bool { return by["s2"] >= 10 && by[""] == 0 })

	wire, err := link.Load()
	require(t, err)
	defer wire.Close()
	s2.whileStopped(func() {
		s2.detach("xdp")
		require(t, s2.onDeviceNamed("eth0", func(device netlink.Link) error {
			return netlink.LinkSetXdpFdWithFlags(device, wire.PassFD(), nl.XDP_FLAGS_DRV_MODE)
		}))
	})
	n.awaitServer("s2", "unhealthy", "program pass", "(agent s2)")
	n.awaitAnswers("with another program on s2", func(by map[string]int) bool { return by["s1"] == 64 })
}

// onDeviceNamed changes a device of the host.
func (h *host) onDeviceNamed(name string, change func(netlink.Link) error) error {
	return h.space.Do(func() error {
		device, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return change(device)
	})
}
