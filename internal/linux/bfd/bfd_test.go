package bfd_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/bfd"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const (
	down, initial, up = 1 << 6, 2 << 6, 3 << 6
	poll, final       = 0x20, 0x10
	independent       = 0x08
)

// packet is that of RFC 5880 4.1.
type packet struct {
	version, state, multiplier, length uint8
	mine, yours, minTX, minRX, minEcho uint32
}

func (p packet) bytes() []byte {
	b := []byte{p.version, p.state, p.multiplier, p.length}
	for _, word := range []uint32{p.mine, p.yours, p.minTX, p.minRX, p.minEcho} {
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return b
}

func parse(b []byte) (p packet) {
	word := func(i int) uint32 { return binary.BigEndian.Uint32(b[i:]) }
	return packet{b[0], b[1], b[2], b[3], word(4), word(8), word(12), word(16), word(20)}
}

// router sends and receives as one.
type router struct {
	*testing.T
	listening, sending *net.UDPConn
	host               netip.Addr
}

func newRouter(t *testing.T, space *netspace.Space, address, host netip.Addr) *router {
	r := &router{T: t, host: host}
	progtest.Check(t, space.Do(func() (err error) {
		if r.listening, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 3784))); err != nil {
			return err
		}
		r.sending, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 50000)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(host, 3784)))
		return err
	}))
	t.Cleanup(func() { r.listening.Close(); r.sending.Close() })
	return r
}

func (r *router) send(ttl int, p []byte) {
	r.Helper()
	raw, err := r.sending.SyscallConn()
	progtest.Check(r, err)
	raw.Control(func(fd uintptr) {
		if r.host.Is4() {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, ttl)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl)
		}
	})
	progtest.Check(r, err)
	if _, err := r.sending.Write(p); err != nil { // of an earlier packet
		_, err = r.sending.Write(p)
		progtest.Check(r, err)
	}
}

func (r *router) answer() (p packet, from netip.AddrPort) {
	r.Helper()
	b := make([]byte, 100)
	r.listening.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, from, err := r.listening.ReadFromUDPAddrPort(b)
	progtest.Check(r, err)
	if n != 24 {
		r.Fatalf("%d bytes", n)
	}
	return parse(b[:n]), from
}

// host is a load balancer's, with its address and that of a router by family.
type host struct {
	spaces    [2]*netspace.Space
	addresses map[string][2]netip.Addr
	pins      string
	ifindex   int
}

func newHost(t *testing.T) *host {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h := &host{spaces: [2]*netspace.Space{progtest.NewSpace(t, "l"), progtest.NewSpace(t, "r")}, addresses: map[string][2]netip.Addr{}, pins: progtest.Pins(t)}
	for _, space := range h.spaces {
		progtest.Check(t, space.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	progtest.Connect(t, h.spaces[0], "eth0", 1, h.spaces[1], "eth0", 2, 9, 1500)
	for family, form := range map[string]string{"IPv4": "10.9.0.%d", "IPv6": "fd09::%d"} {
		h.addresses[family] = [2]netip.Addr{netip.MustParseAddr(fmt.Sprintf(form, 1)), netip.MustParseAddr(fmt.Sprintf(form, 2))}
	}
	progtest.Check(t, h.spaces[0].Do(func() error {
		device, err := net.InterfaceByName("eth0")
		h.ifindex = device.Index
		return err
	}))
	return h
}

// generic runs an XDP program in generic mode, as that of a load balancer may be: the kernel copies frames for it, and loses how long their link's header is.
func (h *host) generic(t *testing.T) {
	t.Helper()
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	progtest.Check(t, err)
	t.Cleanup(func() { pass.Close() })
	progtest.Check(t, h.spaces[0].Do(func() error {
		attached, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: h.ifindex, Flags: link.XDPGenericMode})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	}))
}

func TestRoutersAreAnsweredBehindGenericXDP(t *testing.T) {
	h := newHost(t)
	h.generic(t)
	for family, addresses := range h.addresses {
		reflector := h.open(t, addresses[1])
		r := newRouter(t, h.spaces[1], addresses[1], addresses[0])
		r.send(255, packet{1 << 5, down, 3, 24, 7, 0, 300_000, 300_000, 0}.bytes())
		if answer, _ := r.answer(); answer.state&0xc0 != initial || answer.yours != 7 {
			t.Errorf("%s: %+v", family, answer)
		}
		reflector.Close()
	}
}

func (h *host) open(t *testing.T, neighbors ...netip.Addr) *bfd.Reflector {
	t.Helper()
	return h.follow(t, sessions(300*time.Millisecond, neighbors), nil)
}

func sessions(interval time.Duration, neighbors []netip.Addr) (all []bfd.Session) {
	for _, neighbor := range neighbors {
		all = append(all, bfd.Session{Neighbor: neighbor, Interval: interval, Multiplier: 3})
	}
	return all
}

// follow opens a reflector that answers routers and network functions.
func (h *host) follow(t *testing.T, routers, functions []bfd.Session) (r *bfd.Reflector) {
	t.Helper()
	progtest.Check(t, h.spaces[0].Do(func() (err error) {
		if r, err = bfd.Open(h.pins + "/test"); err != nil {
			return err
		}
		return r.Follow(routers, functions, []int{h.ifindex})
	}))
	return r
}

func TestNeighboursAreAnsweredAlsoWhileNoProcessDoes(t *testing.T) {
	progtest.BothWays(t, func(t *testing.T) {
		h := newHost(t)
		for family, at := range h.addresses {
			reflector := h.open(t, at[1])
			peer := newRouter(t, h.spaces[1], at[1], at[0])
			ask := func(state uint8, yours, minTX uint32) packet {
				t.Helper()
				peer.send(255, packet{0x20, state, 5, 24, 77, yours, minTX, 100_000, 0}.bytes())
				answer, from := peer.answer()
				if from.Addr().Unmap() != at[0] || from.Port() < 49152 || answer.version != 0x20 || answer.multiplier != 3 || answer.length != 24 ||
					answer.yours != 77 || answer.mine == 0 || answer.minRX != 300_000 || answer.minTX != max(300_000, minTX) || answer.minEcho != 0 {
					t.Fatalf("%s: %+v from %s", family, answer, from)
				}
				return answer
			}
			first := ask(down, 0, 1_000_000)
			if first.state != initial|independent {
				t.Errorf("%s: Down is answered by %#x", family, first.state)
			}
			if s := ask(initial, first.mine, 300_000).state; s != up|independent {
				t.Errorf("%s: Init is answered by %#x", family, s)
			}
			if s := ask(up|poll, first.mine, 50_000).state; s != up|final|independent {
				t.Errorf("%s: a poll is answered by %#x", family, s)
			}
			if s := reflector.States([]netip.Addr{at[1]})[at[1]]; !s.Up || s.Received != 3 || s.Refused != 0 || s.Detection != 900*time.Millisecond {
				t.Errorf("%s: %+v", family, s)
			}
			progtest.Check(t, reflector.Close())
			if again := ask(up, first.mine, 300_000); again.state != up|independent || again.mine != first.mine {
				t.Errorf("%s: without a process: %+v", family, again)
			}
			reflector = h.open(t, at[1])
			if again := ask(up, first.mine, 300_000); again.mine != first.mine {
				t.Errorf("%s: the next process has another session: %+v", family, again)
			}
			progtest.Check(t, reflector.Close())
		}
	})
}

// Promise: BFD packets are refused and counted unless they come from the link (TTL 255) and a neighbour's address
// with the session's discriminator.
// Also held by TestStrangersGetNoAnswer.
func TestWhatIsNotOfASessionIsRefusedAndCounted(t *testing.T) {
	h := newHost(t)
	for family, at := range h.addresses {
		reflector := h.open(t, at[1])
		peer := newRouter(t, h.spaces[1], at[1], at[0])
		good := packet{0x20, down, 5, 24, 77, 0, 300_000, 100_000, 0}
		peer.send(255, good.bytes())
		mine, _ := peer.answer()
		edit := func(edit func(p *packet)) []byte {
			p := good
			edit(&p)
			return p.bytes()
		}
		bad := map[string][]byte{
			"another version":                edit(func(p *packet) { p.version = 0x40 }),
			"another length":                 edit(func(p *packet) { p.length = 26 }),
			"multiplier 0":                   edit(func(p *packet) { p.multiplier = 0 }),
			"without its own discriminator":  edit(func(p *packet) { p.mine = 0 }),
			"Up without ours":                edit(func(p *packet) { p.state = up }),
			"with another's":                 edit(func(p *packet) { p.yours = mine.mine + 1 }),
			"authenticated":                  edit(func(p *packet) { p.state |= 4 }),
			"demand":                         edit(func(p *packet) { p.state |= 2 }),
			"multipoint":                     edit(func(p *packet) { p.state |= 1 }),
			"poll and final":                 edit(func(p *packet) { p.state |= poll | final }),
			"cut short":                      good.bytes()[:20],
			"longer":                         append(good.bytes(), 1, 2),
			"nothing":                        {},
			"garbage":                        bytes.Repeat([]byte{0xff}, 24),
			"that has passed a router (TTL)": nil,
		}
		for name, p := range bad {
			before := reflector.States([]netip.Addr{at[1]})[at[1]]
			if p == nil {
				peer.send(254, good.bytes())
			} else {
				peer.send(255, p)
			}
			peer.send(255, good.bytes())
			peer.answer()
			after := reflector.States([]netip.Addr{at[1]})[at[1]]
			if after.Refused != before.Refused+1 || after.Received != before.Received+1 {
				t.Errorf("%s: %s: %+v, then %+v", family, name, before, after)
			}
		}
		progtest.Check(t, reflector.Close())
	}
}

func TestStrangersGetNoAnswer(t *testing.T) {
	h := newHost(t)
	at := h.addresses["IPv4"]
	reflector := h.open(t, at[1])
	peer := newRouter(t, h.spaces[1], at[1], at[0])
	follow := func(neighbor netip.Addr) {
		progtest.Check(t, h.spaces[0].Do(func() error {
			return reflector.Follow([]bfd.Session{{Neighbor: neighbor, Interval: time.Second, Multiplier: 3}}, nil, []int{h.ifindex})
		}))
	}
	ask := func(mine uint32) { peer.send(255, packet{0x20, down, 5, 24, mine, 0, 300_000, 100_000, 0}.bytes()) }
	ask(76)
	peer.answer() // the hosts know each other's MAC addresses
	follow(netip.MustParseAddr("10.9.0.77"))
	ask(77)
	follow(at[1])
	ask(78)
	if answer, _ := peer.answer(); answer.yours != 78 {
		t.Errorf("a stranger got %+v", answer)
	}
	progtest.Check(t, reflector.Close())
}

// BIRD is another implementation, and comes as a package.
func TestBIRDHoldsAHostForDeadInTime(t *testing.T) {
	if _, err := exec.LookPath("bird"); err != nil {
		t.Skip("needs bird2")
	}
	h := newHost(t)
	at := h.addresses["IPv4"]
	reflector := h.open(t, at[1])
	dir := t.TempDir()
	config := fmt.Sprintf("router id 10.9.0.2;\nprotocol device {}\nprotocol bfd {\n  accept direct;\n  interface \"eth0\" { min rx interval 300 ms; min tx interval 300 ms; };\n  neighbor %s dev \"eth0\";\n}\n", at[0])
	progtest.Check(t, os.WriteFile(filepath.Join(dir, "bird.conf"), []byte(config), 0o600))
	socket := filepath.Join(dir, "ctl")
	bird := exec.Command("bird", "-f", "-c", filepath.Join(dir, "bird.conf"), "-s", socket)
	progtest.Check(t, h.spaces[1].Start(bird))
	t.Cleanup(func() { bird.Process.Kill(); bird.Wait() })
	state := func(want string) func() error {
		return func() error {
			out, err := exec.Command("birdc", "-s", socket, "show", "bfd", "sessions").CombinedOutput()
			if err == nil && !bytes.Contains(out, []byte(want)) {
				err = fmt.Errorf("%s", out)
			}
			return err
		}
	}
	await.Nil(t, "BIRD has a session", state(" Up "))
	begin := reflector.States([]netip.Addr{at[1]})[at[1]].Received
	await.Nil(t, "it stays", func() error {
		if n := reflector.States([]netip.Addr{at[1]})[at[1]].Received - begin; n < 4 {
			return fmt.Errorf("%d packets", n)
		}
		return state(" Up ")()
	})
	progtest.Check(t, reflector.Close())
	if err := state(" Up ")(); err != nil { // nobody is there but the program
		t.Error(err)
	}
	progtest.Check(t, h.spaces[0].Do(func() error { return bfd.Remove(h.pins + "/test") }))
	await.Nil(t, "BIRD notices", state(" Down "))
}
