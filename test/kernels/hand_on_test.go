package kernels

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const handOnFile = `
keys: {placement: 00112233445566778899aabbccddeeff, current: 1, cookie: {1: ffeeddccbbaa99887766554433221100}}
services:
  - {name: four, vip: 198.51.100.10, ports: [80], servers: [
      {name: s1, id: 1, address: 10.60.0.11}, {name: s2, id: 2, address: 10.63.0.12}]}
`

// TestAgentsHandOnByTwoDevices: what an agent hands on arrives by another card than the one that tunnels come in by, which the agent is started with,
// also after somebody has detached the program there. virtio_net transmits redirected frames only while it has a program itself.
func TestAgentsHandOnByTwoDevices(t *testing.T) {
	left := strings.FieldsFunc(*cards, func(r rune) bool { return r == ',' })
	if len(left) < 2*2*nodes+2*twoArms {
		t.Skip("needs -cards")
	}
	f := &fleet{t: t, cards: left[2*2*nodes:][:2*twoArms], mode: attach.XDPNative, spaces: map[string]*netspace.Space{}, file: filepath.Join(t.TempDir(), "ballast.yaml")}
	f.must(os.WriteFile(f.file, []byte(handOnFile), 0o600))
	router, s1, s2 := f.space("router"), f.space("s1"), f.space("s2")
	f.plug(netspace.End{Space: s1, Interface: "eth0", MTU: 1600, Addresses: prefixes("10.60.0.11/24")},
		netspace.End{Space: router, Interface: "front", MTU: 1600, Addresses: prefixes("10.60.0.10/24")})
	f.plug(netspace.End{Space: s1, Interface: "eth1", MTU: 1600, Addresses: prefixes("10.63.0.11/24")},
		netspace.End{Space: s2, Interface: "eth0", MTU: 1600, Addresses: prefixes("10.63.0.12/24")})
	f.must(s1.AddAddress("lo", netip.PrefixFrom(vips[0], 32)))
	stop := f.start("agent", "s1")
	f.await("the program on eth1", func() error {
		if has, err := attachments(s1, "eth1"); err != nil || len(has) == 0 {
			return fmt.Errorf("it has %q: %v", has, err)
		}
		return nil
	})
	f.handsOn("at first")
	f.detachXDP("s1", "eth1")
	f.handsOn("after the program was detached")
	stop()
	f.await("nothing is left on eth1 after --detach", func() error {
		if has, err := attachments(s1, "eth1"); err != nil || len(has) > 0 {
			return fmt.Errorf("it has %q: %v", has, err)
		}
		return nil
	})
}

// handsOn has s1 hand on packets of no connection of its own until one arrives at s2.
func (f *fleet) handsOn(when string) {
	f.t.Helper()
	open := func(node, device string) (socket *frames.Socket, mac net.HardwareAddr) {
		f.must(f.spaces[node].Do(func() error {
			found, err := net.InterfaceByName(device)
			if err != nil {
				return err
			}
			mac = found.HardwareAddr
			socket, err = frames.Open(device)
			return err
		}))
		return socket, mac
	}
	sends, from := open("router", "front")
	defer sends.Close()
	receives, _ := open("s2", "eth0")
	defer receives.Close()
	stray := frames.Segment{From: from, Client: netip.MustParseAddrPort("203.0.113.7:1234"), Service: netip.AddrPortFrom(vips[0], 80)}
	f.must(f.spaces["s1"].Do(func() error {
		device, err := netlink.LinkByName("eth0")
		if err == nil {
			stray.To = device.Attrs().HardwareAddr
		}
		return err
	}))
	frame, err := stray.WithStop(netip.MustParseAddr("10.60.0.10"), netip.MustParseAddr("10.60.0.11"), netip.MustParseAddr("10.63.0.12"))
	f.must(err)
	f.await(when+", packets that are handed on arrive", func() error {
		f.must(sends.Send(frame))
		for {
			got, err := receives.Receive()
			if err != nil || got == nil {
				return fmt.Errorf("none has: %v: %v", err, f.counters("s1")["handed_on"])
			}
			if segment, ok := frames.Tunnelled(got); ok && segment.Client == stray.Client {
				return nil
			}
		}
	})
}

// detachXDP takes the program that a daemon has pinned off a device.
func (f *fleet) detachXDP(node, device string) {
	f.t.Helper()
	f.must(f.spaces[node].Do(func() error {
		found, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		path := append([]byte(filepath.Join(f.flags(node)[1], "bpf", "default", fmt.Sprintf("link-xdp-%d", found.Index))), 0)
		pinned := struct {
			path      *byte
			fd, flags uint32
		}{path: &path[0]}
		fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET, uintptr(unsafe.Pointer(&pinned)), unsafe.Sizeof(pinned))
		if errno != 0 {
			return fmt.Errorf("open the link pinned at %s: %w", path, errno)
		}
		defer unix.Close(int(fd))
		link := uint32(fd)
		if _, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_LINK_DETACH, uintptr(unsafe.Pointer(&link)), unsafe.Sizeof(link)); errno != 0 {
			return fmt.Errorf("detach the program from %s: %w", device, errno)
		}
		return nil
	}))
}
