package server_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
)

// offers is a rig with a load balancer of dispatch choices and affinity history before the server. SYNs come to the server as the last
// candidate of the column that their client's port names, so that it takes them; what comes later has to name that column itself.
type offers struct {
	*xdpRig
	direct atomic.Bool   // as if there were no load balancer
	lost   atomic.Uint64 // packets that name another column
	first  atomic.Value  // string: the first of them
	seen   atomic.Uint64
	resets atomic.Uint64 // of those seen
}

func columnOf(port uint16) byte { return byte(port % 4) }

func newOffers(t *testing.T, o rigOptions) *offers {
	t.Helper()
	plain := o.plain
	o.plain = true
	r := &offers{xdpRig: &xdpRig{rig: newRig(t, o)}}
	progtest.Check(t, r.server.Do(func() (err error) { r.device, err = net.InterfaceByName("eth0"); return err }))
	for i := range r.fleet.Services {
		s := &r.fleet.Services[i]
		s.Dispatch, s.Affinity = model.DispatchChoices, model.AffinityHistory
		s.Choices.Accept = model.Accept{Policy: model.AcceptStatic, Threshold: 1 << 30}
	}
	if !plain {
		r.attach("")
		r.prepare()
	}
	r.stand()
	return r
}

// stand puts a device before the client's way to the services, and what reads from it in front of the server.
func (r *offers) stand() {
	t := r.t
	t.Helper()
	var in int
	var out *frames.Socket
	progtest.Check(t, r.client.Do(func() (err error) {
		if in, err = openTun("tun0"); err != nil {
			return err
		}
		if output, err := exec.Command("sh", "-ec", `ip link set tun0 mtu 1300 up
ip route replace 198.51.100.10 dev tun0 src 10.9.0.1
ip -6 route replace 2001:db8:51::10 dev tun0 src fd09::1`).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		out, err = frames.Open("eth0")
		return err
	}))
	for _, key := range []string{"all", "eth0"} {
		progtest.Check(t, r.client.Sysctl("net/ipv4/conf/"+key+"/rp_filter", "0"))
	}
	progtest.Check(t, unix.SetNonblock(in, true))
	device := os.NewFile(uintptr(in), "tun0")
	var end sync.WaitGroup
	end.Go(func() {
		packet := make([]byte, 2048)
		for {
			n, err := device.Read(packet)
			if err != nil {
				return
			}
			if frame := r.carry(packet[:n]); frame != nil {
				out.Send(frame)
			}
		}
	})
	t.Cleanup(func() { device.Close(); end.Wait(); out.Close() })
}

func openTun(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var request [40]byte
	copy(request[:15], name)
	binary.NativeEndian.PutUint16(request[16:], unix.IFF_TUN|unix.IFF_NO_PI)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&request))); errno != 0 {
		unix.Close(fd)
		return -1, errno
	}
	return fd, nil
}

// carry is what a load balancer makes of a client's packet; nil: nothing.
func (r *offers) carry(packet []byte) []byte {
	to := r.vips[0]
	if packet[0]>>4 == 6 {
		to = r.vips[1]
	}
	plain := append(r.header(0, to), packet...)
	client, service, tcp := segment(plain)
	if tcp == nil || service.Addr() != to {
		return nil
	}
	if r.direct.Load() {
		return plain
	}
	if tcp[13]&2 != 0 {
		return r.wrap(tunnel{from: balancers[0], to: own4, gue: offer(columnOf(client.Port()))}, packet)
	}
	if _, echo, ok := timestamps(tcp); ok {
		r.seen.Add(1)
		if tcp[13]&4 != 0 {
			r.resets.Add(1)
		}
		if byte(echo&3) != columnOf(client.Port()) && r.lost.Add(1) == 1 {
			r.first.Store(fmt.Sprintf("%s > %s TSecr %#x, flags %#x", client, service, echo, tcp[13]))
		}
	}
	return r.wrap(tunnel{from: balancers[0], to: own4, gue: plainGUE()}, packet)
}

// offer makes a SYN come to the last candidate, in a column.
func offer(column byte) []byte {
	if column == 0 {
		return plainGUE()
	}
	stops := []netip.Addr{stop4, stop4, stop4}[:column]
	return gueWithStops(column, stops...)
}

// verify is what tests end with: every packet came to its column, the wire was right, and no kernel objects.
func (r *offers) verify(w *watcher, before map[string]int) {
	r.t.Helper()
	r.rig.verify(w, before)
	if r.seen.Load() == 0 || r.lost.Load() != 0 {
		r.t.Errorf("of %d packets %d name another column than their connection's, first %v", r.seen.Load(), r.lost.Load(), r.first.Load())
	}
}

// absent makes the server send what is for an address to the client, which does not have it.
func (r *rig) absent(address netip.Addr) {
	r.t.Helper()
	mac, err := r.client.MAC("eth0")
	progtest.Check(r.t, err)
	progtest.Check(r.t, r.server.KnowNeighbours("eth0", map[netip.Addr]net.HardwareAddr{address: mac}))
}
