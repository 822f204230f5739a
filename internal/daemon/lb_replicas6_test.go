package daemon_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// peer6 is the data path of the other load balancer, number 7: its messages have no checksum, and it is the chain of all connections.
type peer6 struct {
	socket *net.UDPConn
	key    peermessage.Key
	client netip.AddrPort
	entry  uint64 // the connection of the client
}

// say sends a message to the load balancer.
func (p *peer6) say(m peermessage.Message, connection uint64, packet []byte, to netip.AddrPort) {
	p.socket.WriteToUDPAddrPort(append(m.Append(nil, p.key, connection, 3, false), packet...), to)
}

// answer answers what the load balancer asks until the socket is closed, and tells when the load balancer has answered a ping.
func (p *peer6) answer(heard chan<- struct{}) {
	text := make([]byte, 2048)
	of := func(uint32) (peermessage.Key, bool) { return p.key, true }
	for {
		n, from, err := p.socket.ReadFromUDPAddrPort(text)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		m, ok := peermessage.Parse(text[:n])
		switch {
		case !ok:
		case m.Kind == peermessage.Ping && peermessage.IsGenuine(text[:n], of, 0, 7):
			m.Kind, m.Last = peermessage.Pong, 7
			p.say(m, 0, nil, from)
		case m.Kind == peermessage.Pong && peermessage.IsGenuine(text[:n], of, 0, 7):
			select {
			case heard <- struct{}{}:
			default:
			}
		case (m.Kind == peermessage.Write || m.Kind == peermessage.WhoOwns) && peermessage.IsGenuine(text[:n], of, p.entry, 7):
			packet := slices.Clone(text[peermessage.GUELength+peermessage.Length : n])
			m.Owner = max(m.Owner, m.Proposed)
			m.Kind, m.Last = peermessage.Owns, 0
			p.say(m, p.entry, packet, netip.AddrPortFrom(from.Addr(), peermessage.Port))
		}
	}
}

func newPeer6(t *testing.T, h *remoteHost, state *engine.View, service netip.AddrPort) *peer6 {
	t.Helper()
	p := &peer6{client: netip.MustParseAddrPort("10.9.0.4:5353")}
	k0, k1 := plan.PeerKey(state.Keys.Cookie[1])
	p.key = peermessage.Key{K0: k0, K1: k1, Epoch: 1}
	k0, k1 = plan.EntryKey(state.Keys.Placement)
	p.entry = peermessage.FlowKey(k0, k1, p.client, service, unix.IPPROTO_UDP)
	require(t, h.peer.Do(func() (err error) {
		p.socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("[fd09::2]:6080")))
		return err
	}))
	t.Cleanup(func() { p.socket.Close() })
	raw, err := p.socket.SyscallConn()
	require(t, err)
	require(t, raw.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1), unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_NO_CHECK6_TX, 1))
	}))
	require(t, err)
	return p
}

func TestByIPv6LoadBalancersHearEachOtherAndServe(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := &remoteHost{&lbHost{newHost(t, "remote-lb6", []string{"10.9.0.1/24", "fd09::1/64"}, []string{"10.9.0.2/24", "10.9.0.3/24", "10.9.0.4/24", "fd09::2/64"})}}
	require(t, pki.Init(h.tlsDir(), pki.DefaultAuthorityLife, false))
	for _, r := range []pki.Request{{Role: pki.LB, Name: "lb1"}, {Role: pki.Controller, Name: "c1"}, {Role: pki.Controller, Name: "c2"}} {
		require(t, pki.Issue(h.tlsDir(), r))
	}
	controller, _ := h.control(1)
	state := replicatedView(1)
	vip := netip.AddrPortFrom(state.Services[0].Service.VIP, 80)
	p := newPeer6(t, h, state, vip)
	answered := make(chan struct{}, 1)
	go p.answer(answered)
	controller.Topics.SetState(state)
	h.start()
	first := awaitReport(t, controller, "its address and entries", func(r *ballastv1.ReplicaReport) bool { return r.Address == "[fd09::1]:7475" && r.Incarnation != 0 })
	ring := ringView(5, first.Incarnation)
	ring.Nodes[0].Address, ring.Nodes[1].Address = "[fd09::1]:7475", "[fd09::2]:7475"
	controller.Topics.SetReplicas(ring, nil)
	awaitReport(t, controller, "that it hears the other", func(r *ballastv1.ReplicaReport) bool { return r.View == 5 && slices.Equal(r.Heard, []uint32{7}) })
	at := netip.MustParseAddrPort("[fd09::1]:6080")
	await.Nil(t, "the other hears it", func() error {
		p.say(peermessage.Message{Kind: peermessage.Ping, Forwarder: 7, Chain: 1}, 0, nil, at)
		select {
		case <-answered:
			return nil
		default:
			return errors.New("no answer yet")
		}
	})

	require(t, h.peer.Route(netip.PrefixFrom(vip.Addr(), 32), 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.1"), Interface: "eth0"}))
	var client net.Conn
	require(t, h.peer.Do(func() (err error) {
		client, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(p.client), net.UDPAddrFromAddrPort(vip))
		return err
	}))
	defer client.Close()
	await.Nil(t, "packets go by the answer", func() error {
		if _, err := client.Write([]byte("hello")); err != nil {
			return err
		}
		if h.counter("forwarded_by_replica") > 0 {
			return nil
		}
		return errors.New("none was forwarded by an answer")
	})
}
