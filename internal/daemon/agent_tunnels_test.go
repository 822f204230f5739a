package daemon_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

// ipv4Packet has no checksum: the kernel gives the outer header its own, and nobody looks at that of the inner one.
func ipv4Packet(protocol byte, from, to netip.Addr, payload []byte) []byte {
	header := make([]byte, 20, 20+len(payload))
	header[0], header[8], header[9] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(header[2:], uint16(20+len(payload)))
	copy(header[12:], from.AsSlice())
	copy(header[16:], to.AsSlice())
	return append(header, payload...)
}

// tunnel has the peer send a connection request to the service in a tunnel, from any address.
func (h *host) tunnel(from string) {
	h.t.Helper()
	syn := make([]byte, 20)
	binary.BigEndian.PutUint16(syn[0:], 40000)
	binary.BigEndian.PutUint16(syn[2:], 80)
	syn[12], syn[13] = 5<<4, 2
	inner := ipv4Packet(unix.IPPROTO_TCP, netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("198.51.100.10"), syn)
	packet := ipv4Packet(unix.IPPROTO_IPIP, netip.MustParseAddr(from), netip.MustParseAddr("10.9.0.2"), inner)
	require(h.t, h.peer.Do(func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		return unix.Sendto(socket, packet, 0, &unix.SockaddrInet4{Addr: [4]byte{10, 9, 0, 2}})
	}))
}

// expectTunnel sends tunnels from an address until one has become what is wanted, and none something else.
func (h *agentHost) expectTunnel(when, from, want string) {
	h.t.Helper()
	other := map[string]string{"decapsulated": "dropped_foreign_source", "dropped_foreign_source": "decapsulated"}[want]
	before := h.counters()
	for end := time.Now().Add(hostDeadline); ; time.Sleep(5 * time.Millisecond) {
		h.tunnel(from)
		now := h.counters()
		if now[other] != before[other] {
			h.t.Fatalf("%s: a tunnel from %s is %s", when, from, other)
		}
		if now[want] != before[want] {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("%s: a tunnel from %s is not %s: %v", when, from, want, now)
		}
	}
}

func says(problems []string, part string) bool {
	return slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, part) })
}

func TestAnAgentTakesTunnelsOfWhomItsFileNames(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	write := func(key string) {
		sum := h.write(fmt.Sprintf(agentFile, 1) + key)
		h.await("the file", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum })
	}
	h.start()
	write("")
	h.expectTunnel("nobody is named", "10.9.0.66", "decapsulated")
	write("tunnels_from: [10.9.0.1]\n")
	h.expectTunnel("one is named", "10.9.0.1", "decapsulated")
	h.expectTunnel("one is named", "10.9.0.66", "dropped_foreign_source")
	status := h.await("the problem", func(s api.AgentStatus) bool {
		return s.Ready && says(s.Problems, "tunnels from 10.9.0.66 are dropped") && says(s.Problems, "add it to tunnels_from")
	})
	if !status.Tunnels.Limited || status.Tunnels.Source != "file" || status.Tunnels.Foreign == 0 {
		t.Errorf("status %+v", status.Tunnels)
	}
	if problems, _ := h.examine(); !says(problems, "tunnels from 10.9.0.66 are dropped") {
		t.Errorf("doctor: %q", problems)
	}

	write("tunnels_from: [10.9.0.1, 10.9.0.66]\n") // as the problem says
	h.await("the end of the problem", func(s api.AgentStatus) bool { return len(s.Problems) == 0 || !says(s.Problems, "10.9.0.66") })
	h.expectTunnel("two are named", "10.9.0.66", "decapsulated")
	h.expectTunnel("two are named", "10.9.0.1", "decapsulated")
	write("")
	h.expectTunnel("nobody is named any more", "10.9.0.77", "decapsulated")
}

// joins keeps a node's stream to a controller in the peer's namespace, which says that its addresses are these.
func (h *host) joins(controller string, role pki.Role, name string, told func(*ballastv1.TunnelSources), addresses ...string) (leave func()) {
	h.t.Helper()
	require(h.t, pki.Issue(filepath.Join(h.dir, "tls"), pki.Request{Role: role, Name: name, Force: true}))
	credentials, err := pki.Load(filepath.Join(h.dir, "tls"), name, role)
	require(h.t, err)
	ctx, cancel := context.WithCancel(h.t.Context())
	joined := nodeclient.New(nodeclient.Options{
		Controllers: []string{controller}, Credentials: credentials, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Hello: func() *ballastv1.Hello {
			return &ballastv1.Hello{Protocol: api.ControlProtocol, Role: string(role), Name: name, Addresses: addresses}
		},
		Dial: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = h.peer.Do(func() (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
		OnSources: func(_ string, list *ballastv1.TunnelSources) { told(list) },
	})
	var running sync.WaitGroup
	running.Go(func() { joined.Run(ctx) })
	leave = func() { cancel(); running.Wait() }
	h.t.Cleanup(leave)
	return leave
}

func unheard(*ballastv1.TunnelSources) {}

func TestAnAgentTakesTunnelsOfTheLoadBalancersThatControllersTell(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	h.role = "told-agent"
	tls := filepath.Join(h.dir, "tls")
	require(t, errors.Join(pki.Init(tls, pki.DefaultAuthorityLife, false), pki.Issue(tls, pki.Request{Role: pki.Controller, Name: "c1"}),
		pki.Issue(tls, pki.Request{Role: pki.Agent, Name: "s2", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.2")}})))
	hub, end := h.control("c1", "10.9.0.1:6443")
	hub.Topics.SetControllers([]string{"c1"})
	hub.Topics.SetState(viewOf(1, nil, 2, 3))
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool {
		return s.Ready && strings.Contains(s.Tunnels.Open, "know no load balancer")
	})
	h.expectTunnel("nobody is known", "10.9.0.66", "decapsulated")
	h.expectMetrics("of an agent", "ballast_ready 1\n", "ballast_agent_revision 1\n", "ballast_controllers_connected 1\n", "ballast_key_epoch 1\n", "ballast_problems ",
		`ballast_interface_attached{interface="eth0"} 1`, `ballast_certificate_expiry_timestamp_seconds{certificate="own"} `, `ballast_build_info{goversion="go1.`, "process_open_fds ")

	h.joins("10.9.0.1:6443", pki.Agent, "forger", unheard, "10.9.0.77")
	lb1 := h.joins("10.9.0.1:6443", pki.LB, "lb1", unheard, "10.9.0.1")
	h.await("the first to be known", func(s api.AgentStatus) bool { return len(s.Tunnels.From) > 0 })
	h.expectTunnel("the list has not settled", "10.9.0.66", "decapsulated")
	h.await("strangers to be named", func(s api.AgentStatus) bool {
		return s.Tunnels.Limited || says(s.Problems, "tunnels from 10.9.0.66 are of no load balancer that the controllers know")
	})
	h.expectTunnel("the list has not settled", "10.9.0.1", "decapsulated")
	status := h.await("the limit", func(s api.AgentStatus) bool { return s.Tunnels.Limited })
	if status.Tunnels.Source != "controllers" || fmt.Sprint(status.Tunnels.From) != "[10.9.0.1]" {
		t.Errorf("status %+v", status.Tunnels)
	}
	for _, from := range []string{"10.9.0.66", "10.9.0.77"} {
		h.expectTunnel("one load balancer is known", from, "dropped_foreign_source")
	}
	h.expectTunnel("one load balancer is known", "10.9.0.1", "decapsulated")
	h.await("the problem", func(s api.AgentStatus) bool {
		return s.Ready && says(s.Problems, "tunnels from 10.9.0.66 are dropped") && says(s.Problems, "start it with --controller")
	})
	h.eventually("the controller to know", func() bool {
		return slices.ContainsFunc(hub.Nodes.List(), func(n *ballastv1.NodeStatus) bool { return says(n.Problems, "tunnels from 10.9.0.66 are dropped") })
	})

	lb2 := h.joins("10.9.0.1:6443", pki.LB, "lb2", unheard, "10.9.0.66") // as the problem says
	h.await("the second to be known", func(s api.AgentStatus) bool { return len(s.Tunnels.From) == 2 && !says(s.Problems, "10.9.0.66") })
	h.expectTunnel("two are known", "10.9.0.66", "decapsulated")
	lb1()
	lb2()
	end()
	hub, end = h.control("c1", "10.9.0.1:6443") // it knows nobody yet
	hub.Topics.SetControllers([]string{"c1"})
	hub.Topics.SetState(viewOf(1, nil, 2, 3))
	h.eventually("the agent to join", func() bool {
		return slices.ContainsFunc(hub.Nodes.List(), func(n *ballastv1.NodeStatus) bool { return n.Name == "s2" })
	})
	h.expectTunnel("the controller was restarted", "10.9.0.66", "decapsulated")
	h.expectTunnel("the controller was restarted", "10.9.0.1", "decapsulated")
	h.expectTunnel("the controller was restarted", "10.9.0.77", "dropped_foreign_source")

	end()
	h.kill()
	h.start()
	h.await("the second process", func(s api.AgentStatus) bool { return s.Ready && s.Tunnels.Limited && len(s.Tunnels.From) == 2 })
	h.expectTunnel("there is no controller", "10.9.0.66", "decapsulated")
	h.expectTunnel("there is no controller", "10.9.0.77", "dropped_foreign_source")
}

func TestAgentsHearWhereALoadBalancersTunnelsComeFrom(t *testing.T) {
	t.Parallel()
	h := newRemoteHost(t)
	hub, end := h.control(1)
	defer end()
	hub.Topics.SetState(viewOf(1, nil, 2, 3))
	var last atomic.Pointer[ballastv1.TunnelSources]
	defer h.joins(remoteControllers[0], pki.Agent, "s1", last.Store)()
	h.start()
	has := func(address string) bool { return slices.Contains(last.Load().GetAddresses(), address) }
	h.eventually("its address", func() bool { return has("10.9.0.1") })
	h.await("the state", func(s api.LBStatus) bool { return s.Ready && s.Revision == 1 })
	require(t, h.space.AddAddress("eth0", netip.MustParsePrefix("10.9.0.78/24")))
	h.eventually("another address", func() bool { return has("10.9.0.78") && has("10.9.0.1") })
	if list := last.Load(); len(list.Silent) > 0 || slices.ContainsFunc(list.Addresses, func(a string) bool { return !netip.MustParseAddr(a).IsGlobalUnicast() }) {
		t.Errorf("told are %v", list)
	}
}
