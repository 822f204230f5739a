package daemon_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
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
	if !status.Tunnels.Limited || status.Tunnels.Source != "file" || status.Tunnels.Strangers == 0 {
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
