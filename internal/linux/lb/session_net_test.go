package lb

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// On a device, in both modes: answers of every length, and what is released, arrive and are sound.
func TestClientsGetTheAnswersToTheirSegments(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	for name, mode := range map[string]link.XDPAttachFlags{"native": link.XDPDriverMode, "generic": link.XDPGenericMode} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, serviceOf("web", vip4, withSessions))
			near, far := progtest.NewSpace(t, "n"), progtest.NewSpace(t, "f")
			progtest.Connect(t, near, "eth0", 1, far, "eth0", 2, 9, 1500)
			progtest.Check(t, near.Do(func() error {
				eth0, err := netlink.LinkByName("eth0")
				progtest.Check(t, err)
				progtest.Check(t, netlink.LinkSetHardwareAddr(eth0, nodeMAC[:]))
				device, err := net.InterfaceByName("eth0")
				progtest.Check(t, err)
				attached, err := link.AttachXDP(link.XDPOptions{Program: w.lb.Program(), Interface: device.Index, Flags: mode})
				progtest.Check(t, err)
				t.Cleanup(func() { attached.Close() })
				w.update(func(want *plan.Want) {
					for address, path := range want.Paths {
						path.Ifindex = uint32(device.Index)
						want.Paths[address] = path
					}
				})
				tc := &attach.TC{Program: w.lb.objects.program("lb_release"), Hook: attach.Ingress, Ifindex: device.Index}
				err = tc.Attach()
				t.Cleanup(func() { near.Do(tc.Detach) })
				return err
			}))
			pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
			progtest.Check(t, err)
			defer pass.Close()
			progtest.Check(t, far.AttachXDP("eth0", pass.FD())) // or veth does not take what is sent back
			var socket *frames.Socket
			progtest.Check(t, far.Do(func() (err error) { socket, err = frames.Open("eth0"); return err }))
			defer socket.Close()
			sent := func(protocol byte) *layers.TCP { // what the load balancer sends next, of a protocol of IPv4
				t.Helper()
				for end := time.Now().Add(progtest.Deadline); time.Now().Before(end); {
					got, err := socket.Receive()
					progtest.Check(t, err)
					if len(got) > 34 && string(got[6:12]) == string(nodeMAC[:]) && got[23] == protocol {
						return w.decode(got).TransportLayer().(*layers.TCP)
					}
				}
				t.Fatal("it sends nothing")
				return nil
			}
			answer := func(frame []byte) *layers.TCP {
				t.Helper()
				progtest.Check(t, socket.Send(frame))
				return sent(unix.IPPROTO_TCP)
			}
			s := &shake{world: w, name: "web", flow: flowTo(vip4, 443, 1), sequence: anySequence()}
			s.answered(answer(s.flow.frame(s.flow.synSegment(s.sequence, 0, synOptions()))))
			hello := helloWithKey(w.nameOf(vip4, 2, 1), 1300)
			progtest.Check(t, socket.Send(s.echoing(0, hello[:1300])))
			if got := answer(s.echoing(0, hello[:1300])); got.Ack != s.sequence+1+1300 || len(got.Payload) != 0 {
				t.Errorf("%+v", got)
			}
			progtest.Check(t, socket.Send(s.echoing(1300, hello[1300:])))
			for range 2 {
				sent(unix.IPPROTO_IPIP)
			}
			progtest.Check(t, far.Route(netip.PrefixFrom(vip4, 32), 0, netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.1"), Interface: "eth0"}))
			var conn net.Conn
			progtest.Check(t, far.Do(func() (err error) { conn, err = net.Dial("tcp", netip.AddrPortFrom(vip4, 443).String()); return err }))
			defer conn.Close()
			_, err = conn.Write(hello[:1300])
			progtest.Check(t, err)
			raw, err := conn.(*net.TCPConn).SyscallConn()
			progtest.Check(t, err)
			await.Nil(t, "the client's kernel has its segment acknowledged, which it sends again", func() (err error) {
				failed := raw.Control(func(fd uintptr) {
					var left int
					if left, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ); err == nil && left > 0 {
						err = fmt.Errorf("%d bytes are not", left)
					}
				})
				return errors.Join(failed, err)
			})
		})
	}
}
