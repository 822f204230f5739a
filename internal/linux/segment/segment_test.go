package segment_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/segment"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const etherType = 0x88b7

var vips = []netip.Addr{netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8:100::10")}

// rig is a load balancer's host, and another one on its segment.
type rig struct {
	*testing.T
	host, other *netspace.Space
	link, peer  *segment.Link
	answers     *segment.Answers
	pins        string
}

func newRig(t *testing.T) *rig {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	r := &rig{T: t, host: progtest.NewSpace(t, "l"), other: progtest.NewSpace(t, "r"), pins: progtest.Pins(t)}
	for _, space := range []*netspace.Space{r.host, r.other} {
		progtest.Check(t, space.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	progtest.Connect(t, r.host, "eth0", 1, r.other, "eth0", 2, 9, 1500)
	open := func(space *netspace.Space) (l *segment.Link) {
		await.True(t, "eth0 has a link-local address", func() bool {
			progtest.Check(t, space.Do(func() error {
				device, err := segment.Find("eth0")
				if err == nil {
					l, err = segment.OpenLink(device, etherType)
				}
				return err
			}))
			if l.Speaks(vips[1]) == "" {
				return true
			}
			l.Close()
			return false
		})
		t.Cleanup(l.Close)
		return l
	}
	r.link, r.peer = open(r.host), open(r.other)
	r.attach()
	return r
}

func (r *rig) attach() {
	r.Helper()
	progtest.Check(r, r.host.Do(func() (err error) {
		if r.answers, err = segment.OpenAnswers(r.pins); err != nil {
			return err
		}
		r.Cleanup(func() { r.answers.Close() })
		return errors.Join(r.answers.Attach(r.link.Device.Index), r.answers.Alone(r.link.Device.Index))
	}))
}

// generic runs an XDP program in generic mode, as that of a load balancer may be.
func (r *rig) generic() {
	r.Helper()
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	progtest.Check(r, err)
	r.Cleanup(func() { pass.Close() })
	progtest.Check(r, r.host.Do(func() error {
		attached, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: r.link.Device.Index, Flags: link.XDPGenericMode})
		if err == nil {
			r.Cleanup(func() { attached.Close() })
		}
		return err
	}))
}

// heard returns the next frame that is about a VIP; an empty one: there was none, though what follows it arrived.
func (r *rig) heard(at, from *segment.Link, vip netip.Addr) segment.Frame {
	r.Helper()
	marker := fmt.Sprintf("%46d", time.Now().UnixNano())
	progtest.Check(r, from.Advertise([]byte(marker)))
	var found segment.Frame
	await.True(r, "the marker arrives", func() bool {
		frames, err := at.Drain()
		progtest.Check(r, err)
		for _, f := range frames {
			if f.VIP == vip {
				found = f
			}
		}
		return slices.ContainsFunc(frames, func(f segment.Frame) bool { return string(f.Payload) == marker })
	})
	return found
}

func TestRequestsForOwnedVIPsAreAnswered(t *testing.T) {
	for _, mode := range []string{"", "generic"} {
		t.Run("XDP "+mode, func(t *testing.T) {
			r := newRig(t)
			if mode != "" {
				r.generic()
			}
			mac := r.link.Device.HardwareAddr
			for _, vip := range vips {
				for _, to := range []net.HardwareAddr{nil, mac} {
					ask := func() segment.Frame {
						progtest.Check(t, r.peer.Probe(vip, to))
						return r.heard(r.peer, r.link, vip)
					}
					if f := ask(); f.VIP.IsValid() {
						t.Errorf("%s, to %v: answered before it is known: %+v", vip, to, f)
					}
					progtest.Check(t, r.answers.Set(vip, mac, segment.Owned))
					if f := ask(); f.From.String() != mac.String() {
						t.Errorf("%s, to %v: %+v, not from %s", vip, to, f, mac)
					}
					progtest.Check(t, r.answers.Set(vip, mac, segment.Other))
					if f := ask(); f.VIP.IsValid() {
						t.Errorf("%s, to %v: answered while another one owns it", vip, to)
					}
					progtest.Check(t, r.answers.Forget(vip))
				}
			}
			known, err := r.answers.Known()
			if progtest.Check(t, err); len(known) != 0 {
				t.Errorf("known: %v", known)
			}
		})
	}
}

// TestHostsFindVIPsAsTheyDo: the kernel of another host, whose requests are as they are, with a VIP on lo of the load balancer.
func TestHostsFindVIPsAsTheyDo(t *testing.T) {
	r := newRig(t)
	progtest.Check(t, r.host.Sysctl("net/ipv4/conf/all/arp_ignore", "0"))
	device := r.peer.Device.Index
	neighbours := func(vip netip.Addr) (found string) {
		progtest.Check(t, r.other.Do(func() error {
			list, err := netlink.NeighList(device, netlink.FAMILY_ALL)
			for _, n := range list {
				if n.IP.Equal(vip.AsSlice()) && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0 {
					found = n.HardwareAddr.String()
				}
			}
			return err
		}))
		return found
	}
	send := func(vip netip.Addr) {
		progtest.Check(t, r.other.Do(func() error {
			socket, err := net.Dial("udp", netip.AddrPortFrom(vip, 9).String())
			if err == nil {
				socket.Write([]byte("x"))
				socket.Close()
			}
			return err
		}))
	}
	own := r.link.Device.HardwareAddr
	for _, vip := range vips {
		prefix := netip.PrefixFrom(vip, vip.BitLen())
		progtest.Check(t, r.host.AddAddress("lo", prefix))
		progtest.Check(t, r.other.Route(prefix, 0, netspace.NextHop{Interface: "eth0"}))
		progtest.Check(t, r.answers.Set(vip, own, segment.Other))
		send(vip)
		progtest.Check(t, r.peer.Probe(vip, nil))
		if f := r.heard(r.peer, r.link, vip); f.VIP.IsValid() || neighbours(vip) != "" {
			t.Errorf("%s is answered for, though another one owns it: %+v", vip, f)
		}
		progtest.Check(t, r.answers.Set(vip, own, segment.Owned))
		await.True(t, "it is found", func() bool {
			send(vip)
			return neighbours(vip) == own.String()
		})
		progtest.Check(t, r.other.Do(func() error {
			return netlink.NeighSet(&netlink.Neigh{LinkIndex: device, IP: vip.AsSlice(), State: netlink.NUD_STALE, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}})
		}))
		progtest.Check(t, r.link.Announce(vip))
		await.True(t, "an announcement moves it", func() bool { return neighbours(vip) == own.String() })
	}
	known, err := r.answers.Known()
	progtest.Check(t, err)
	for _, vip := range vips {
		if known[vip].State != segment.Owned || known[vip].Given == 0 {
			t.Errorf("%s: %+v", vip, known[vip])
		}
	}
}

// TestAHeldVIPIsLeftToALoadBalancerThatTakesIt, and to nobody else; until then hosts are answered.
func TestAHeldVIPIsLeftToALoadBalancerThatTakesIt(t *testing.T) {
	for _, mode := range []string{"", "generic"} {
		for _, vip := range vips {
			t.Run(fmt.Sprintf("%s, XDP %s", vip, mode), func(t *testing.T) {
				r := newRig(t)
				if mode != "" {
					r.generic()
				}
				mac, peer := r.link.Device.HardwareAddr, [6]byte(r.peer.Device.HardwareAddr)
				past, future := segment.Uptime()-1, segment.Uptime()+time.Hour
				strange, known := map[[6]byte]bool{{2, 9}: true}, map[[6]byte]bool{{2, 9}: true, peer: true}
				for _, c := range []struct {
					state  segment.State
					until  time.Duration
					peers  map[[6]byte]bool
					answer bool // to the peer's probe
				}{
					{segment.Owned, 0, known, true},
					{segment.Owned, future, known, true},
					{segment.Owned, past, strange, true},
					{segment.Owned, past, known, false},
					{segment.Held, future, strange, true},
					{segment.Held, future, known, false},
					{segment.Held, 0, known, false},
				} {
					progtest.Check(t, errors.Join(r.answers.Set(vip, mac, c.state), r.answers.SetUntil(c.until), r.answers.SetPeers(c.peers)))
					if until, err := r.answers.Until(); err != nil || until != c.until {
						t.Fatalf("until %v: %v, %v", c.until, until, err)
					}
					for _, to := range []net.HardwareAddr{nil, mac} {
						progtest.Check(t, r.peer.Probe(vip, to))
						if f := r.heard(r.peer, r.link, vip); f.VIP.IsValid() != c.answer {
							t.Errorf("%+v: to %v: %+v", c, to, f)
						}
					}
					want := segment.Other // who may take it says that it has
					if c.answer {
						want = c.state
					}
					progtest.Check(t, r.peer.Announce(vip))
					if f := r.heard(r.link, r.peer, vip); !f.VIP.IsValid() {
						t.Errorf("%+v: the announcement is kept from the host", c)
					}
					answers, err := r.answers.Known()
					if progtest.Check(t, err); answers[vip].State != want {
						t.Errorf("%+v: %+v after an announcement", c, answers[vip])
					}
				}
			})
		}
	}
}

func TestAnnouncementsAndProbesOfOthersAreNoQuestions(t *testing.T) {
	r := newRig(t)
	for _, vip := range vips {
		progtest.Check(t, r.answers.Set(vip, r.link.Device.HardwareAddr, segment.Owned))
		progtest.Check(t, r.peer.Announce(vip))
		if f := r.heard(r.link, r.peer, vip); f.From.String() != r.peer.Device.HardwareAddr.String() {
			t.Errorf("%s: the announcement of another one: %+v", vip, f)
		}
		progtest.Check(t, r.peer.Probe(vip, nil))
		if f := r.heard(r.link, r.peer, vip); f.VIP.IsValid() {
			t.Errorf("%s: a probe is taken for an answer: %+v", vip, f)
		}
	}
}

// TestAnswersOutliveTheProcess, and go when they are removed.
func TestAnswersOutliveTheProcess(t *testing.T) {
	r := newRig(t)
	for _, vip := range vips {
		progtest.Check(t, r.answers.Set(vip, r.link.Device.HardwareAddr, segment.Owned))
	}
	progtest.Check(t, r.answers.Close())
	asked := func(vip netip.Addr) bool {
		progtest.Check(t, r.peer.Probe(vip, nil))
		return r.heard(r.peer, r.link, vip).VIP == vip
	}
	for _, vip := range vips {
		if !asked(vip) {
			t.Errorf("%s is not answered without a process", vip)
		}
	}
	r.attach()
	known, err := r.answers.Known()
	if progtest.Check(t, err); len(known) != len(vips) {
		t.Errorf("known after a restart: %v", slices.Collect(maps.Keys(known)))
	}
	progtest.Check(t, r.answers.Close())
	progtest.Check(t, r.host.Do(func() error {
		found, err := segment.Remove(r.pins)
		if err == nil && !found {
			t.Error("there was nothing to remove")
		}
		return err
	}))
	for _, vip := range vips {
		await.True(t, vip.String()+" is answered no more", func() bool { return !asked(vip) })
	}
}

// TestAnswersOfAnEarlierVersionGoOn: it had neither a lease nor peers.
func TestAnswersOfAnEarlierVersionGoOn(t *testing.T) {
	r := newRig(t)
	for _, vip := range vips {
		progtest.Check(t, r.answers.Set(vip, r.link.Device.HardwareAddr, segment.Owned))
	}
	progtest.Check(t, r.answers.Close())
	for _, name := range []string{"segment_until", "segment_peers"} {
		found, err := filepath.Glob(filepath.Join(r.pins, "segment", "segment-v*", name))
		if progtest.Check(t, err); len(found) != 1 {
			t.Fatalf("%s is pinned at %v", name, found)
		}
		progtest.Check(t, os.Remove(found[0]))
	}
	r.attach()
	known, err := r.answers.Known()
	progtest.Check(t, err)
	if until, err := r.answers.Until(); err != nil || until != 0 {
		t.Errorf("until %v, %v", until, err)
	}
	progtest.Check(t, r.answers.SetPeers(map[[6]byte]bool{[6]byte(r.peer.Device.HardwareAddr): true}))
	for _, vip := range vips {
		progtest.Check(t, r.peer.Probe(vip, nil))
		if f := r.heard(r.peer, r.link, vip); !f.VIP.IsValid() || known[vip].State != segment.Owned {
			t.Errorf("%s: %+v, known %+v", vip, f, known[vip])
		}
	}
}

// TestVIPsThatShareAGroupKeepIt: solicitations of one go on when the other leaves.
func TestVIPsThatShareAGroupKeepIt(t *testing.T) {
	r := newRig(t)
	joined := func() (is bool) {
		progtest.Check(t, r.host.Do(func() error {
			groups, err := os.ReadFile("/proc/thread-self/net/igmp6")
			is = strings.Contains(string(groups), "ff0200000000000000000001ff000010")
			return err
		}))
		return is
	}
	one, other := vips[1], netip.MustParseAddr("2001:db8:200::10")
	for _, step := range []struct {
		do   func(netip.Addr) error
		vip  netip.Addr
		want bool
	}{{r.link.Join, one, true}, {r.link.Join, other, true}, {r.link.Join, one, true}, {r.link.Leave, one, true}, {r.link.Leave, one, true}, {r.link.Leave, other, false}} {
		progtest.Check(t, r.host.Do(func() error { return step.do(step.vip) }))
		if is := joined(); is != step.want {
			t.Fatalf("%s: the group is joined: %t", step.vip, is)
		}
	}
}

func TestADeviceThatIsGoneIsNoPanic(t *testing.T) {
	r := newRig(t)
	gone := *r.link.Device
	gone.Index = 1 << 20
	progtest.Check(t, r.host.Do(func() error {
		if l, err := segment.OpenLink(&gone, etherType); err == nil {
			l.Close()
			t.Error("opened")
		}
		device, err := segment.Find("eth9")
		if device != nil {
			t.Errorf("found %+v", device)
		}
		return err
	}))
}
