package mptcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const (
	commandSetLimits = 5 // MPTCP_PM_CMD_SET_LIMITS
	attributeAccepts = 2 // MPTCP_PM_ATTR_RCV_ADD_ADDRS
)

// setLimits has a client accept so many announcements.
func setLimits(accepts uint32) error {
	_, err := request(commandSetLimits, unix.NLM_F_ACK, nl.NewRtAttr(attributeAccepts, nl.Uint32Attr(accepts)), nl.NewRtAttr(attributeSubflows, nl.Uint32Attr(8)))
	return err
}

// multipath is a connection of a client to a server of a VIP's port 80, between two namespaces.
type multipath struct {
	t              *testing.T
	client, server *netspace.Space
	conn, peer     net.Conn
}

// connect begins it. The server announces addresses.
func connect(t *testing.T, client, server *netspace.Space, announced ...netip.AddrPort) *multipath {
	t.Helper()
	m := &multipath{t: t, client: client, server: server}
	var listener net.Listener
	do(t, server, func() (err error) {
		for _, at := range announced {
			check(t, Add(at))
		}
		config := net.ListenConfig{}
		config.SetMultipathTCP(true)
		listener, err = config.Listen(context.Background(), "tcp4", netip.AddrPortFrom(vip.Addr(), 80).String())
		return err
	})
	do(t, client, func() (err error) {
		dialer := net.Dialer{}
		dialer.SetMultipathTCP(true)
		m.conn, err = dialer.Dial("tcp4", listener.Addr().String())
		return err
	})
	var err error
	m.peer, err = listener.Accept()
	check(t, err)
	check(t, listener.Close())
	t.Cleanup(func() { m.conn.Close(); m.peer.Close() })
	m.talk()
	return m
}

// talk has both ends send something.
func (m *multipath) talk() {
	m.t.Helper()
	for _, way := range [][2]net.Conn{{m.conn, m.peer}, {m.peer, m.conn}} {
		_, err := way[0].Write([]byte("x"))
		check(m.t, err)
		_, err = io.ReadFull(way[1], make([]byte, 1))
		check(m.t, err)
	}
}

// joined are the ports that the client's further subflows have reached.
func (m *multipath) joined() (ports []uint16) {
	m.t.Helper()
	m.talk()
	do(m.t, m.client, func() error {
		sockets, err := netlink.SocketDiagTCP(unix.AF_INET)
		for _, s := range sockets {
			if s.State == netlink.TCP_ESTABLISHED && s.ID.DestinationPort != 80 && s.ID.SourcePort != 80 && !slices.Contains(ports, s.ID.DestinationPort) {
				ports = append(ports, s.ID.DestinationPort)
			}
		}
		return err
	})
	slices.Sort(ports)
	return ports
}

// A client that accepts one announcement joins at the port of the current epoch, although that of the last one is there, too.
func TestTheNewestEndpointIsAnnouncedFirst(t *testing.T) {
	_, client, server := newPair(t)
	do(t, client, func() error { return setLimits(1) })
	at := func(n uint16) netip.AddrPort { return netip.AddrPortFrom(vip.Addr(), join.Port()+n) }
	m := connect(t, client, server, at(0), at(2), at(1))
	var joined []uint16
	await.True(t, "a subflow joins", func() bool { joined = m.joined(); return len(joined) > 0 })
	if !slices.Equal(joined, []uint16{at(1).Port()}) {
		t.Errorf("it joins at %v, and the newest is %d", joined, at(1).Port())
	}
}

// newPair is a client and a server of a VIP, and a service with mptcp that is the server's in two epochs.
func newPair(t *testing.T) (fleet *model.Fleet, client, server *netspace.Space) {
	t.Helper()
	newSpace(t) // skips where the kernel has no MPTCP
	client, server = progtest.NewSpace(t, "c"), progtest.NewSpace(t, "s")
	progtest.Connect(t, client, "eth0", 1, server, "eth0", 2, 9, 0)
	check(t, server.AddAddress("lo", vip))
	check(t, client.Route(vip, 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.2"), Interface: "eth0"}))
	return &model.Fleet{
		Keys: model.Keys{Current: 1, Cookie: map[uint32][16]byte{1: {1, 2, 3}}},
		Services: []model.Service{{
			Name: "web", VIP: vip.Addr(), Protocol: model.ProtocolTCP, Ports: []uint16{80}, CookieBits: 14, Affinity: model.AffinityCookie,
			MPTCP: model.MPTCP{FirstPort: 40000, Ports: 100}, Servers: []model.Server{{Name: "s", ID: 7, Address: netip.MustParseAddr("10.9.0.2")}},
		}},
	}, client, server
}

// Connections that begin after a change of epochs are not told the port of the last one, whose endpoint is kept for older ones: that would never end.
func TestPortsOfTheLastEpochAreNotAnnounced(t *testing.T) {
	fleet, client, server := newPair(t)
	do(t, client, func() error { return setLimits(8) })
	agent := progtest.Attach(t, server, progtest.Pins(t), attach.XDPAuto, fleet)
	at := func(epoch uint32) netip.AddrPort {
		return netip.AddrPortFrom(vip.Addr(), plan.JoinPorts(&fleet.Keys, &fleet.Services[0], epoch)(7))
	}
	old := connect(t, client, server, at(1))
	await.True(t, "a subflow joins", func() bool { return slices.Equal(old.joined(), []uint16{at(1).Port()}) })
	fleet.Keys.Cookie[2], fleet.Keys.Current = [16]byte{4, 5, 6}, 2
	progtest.Publish(t, agent, fleet)
	do(t, server, func() error { return Add(at(2)) })
	both := []uint16{at(1).Port(), at(2).Port()}
	slices.Sort(both)
	await.True(t, "the older connection joins at the new port, too", func() bool { return slices.Equal(old.joined(), both) })
	check(t, old.conn.Close())
	check(t, old.peer.Close())
	await.True(t, "the older connection is gone", func() bool { return len(establishedAt(t, server)) == 0 })

	m := connect(t, client, server)
	await.True(t, "a subflow joins", func() bool { return len(m.joined()) > 0 })
	announcements := func(space *netspace.Space, name string) int {
		return progtest.Netstat(t, []*netspace.Space{space}, name)[name]
	}
	if sent := announcements(server, "AddAddrTx"); sent > 0 { // Linux 6.3
		await.True(t, "the kernel announces both", func() bool { m.talk(); return announcements(server, "AddAddrTx") >= 4 })
	}
	for range 20 { // of which each lets the kernel announce one
		m.talk()
	}
	if joined := m.joined(); !slices.Equal(joined, []uint16{at(2).Port()}) {
		t.Errorf("a new connection joins at %v, not at %d alone", joined, at(2).Port())
	}
}

// establishedAt are the ports of a server's connections.
func establishedAt(t *testing.T, server *netspace.Space) (ports []uint16) {
	t.Helper()
	do(t, server, func() error {
		sockets, err := netlink.SocketDiagTCP(unix.AF_INET)
		for _, s := range sockets {
			if s.State == netlink.TCP_ESTABLISHED {
				ports = append(ports, s.ID.SourcePort)
			}
		}
		return err
	})
	return ports
}
