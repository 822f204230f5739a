package server_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const (
	servicePort = 80
	serverID    = 77
)

// A rig is a client and a server joined by one wire, real TCP on both, the agent's programs on the server.
type rig struct {
	t              *testing.T
	client, server *netspace.Space
	router         *netspace.Space // if there is one
	agent          *server.Server
	fleet          *model.Fleet
	vips           []netip.Addr
	wires          []*link.Wire   // of the lossy router
	mode           attach.XDPMode // empty: auto
}

type rigOptions struct {
	bits    uint8
	sysctls map[string]string
	plain   bool // no agent yet
	mtu     int
	lossy   bool // a router between them loses packets
	table   bool // the services have connection tables
	mode    attach.XDPMode
	mac     net.HardwareAddr // of the server's device; nil: any
}

func newRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if o.bits == 0 {
		o.bits = 14
	}
	r := &rig{t: t, mode: o.mode, vips: []netip.Addr{netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8:51::10")}}
	r.client, r.server = progtest.NewSpace(t, "c"), progtest.NewSpace(t, "s")
	// One CPU receives for each end: two would reorder the packets of a connection.
	progtest.Check(t, r.client.ReceiveOn("1"))
	progtest.Check(t, r.server.ReceiveOn("2"))
	for _, space := range []*netspace.Space{r.client, r.server} {
		progtest.Check(t, space.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	if o.lossy {
		r.connectByRouter(o.mtu)
	} else {
		progtest.Connect(t, r.client, "eth0", 1, r.server, "eth0", 2, 9, o.mtu)
	}
	for i, gateway := range []string{"10.9.0.2", "fd09::2"} {
		progtest.Check(t, r.server.AddAddress("lo", netip.PrefixFrom(r.vips[i], r.vips[i].BitLen())))
		progtest.Check(t, r.client.Route(netip.PrefixFrom(r.vips[i], r.vips[i].BitLen()), 0,
			netspace.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: "eth0"}))
	}
	if o.mac != nil {
		progtest.Check(t, r.server.Do(func() error {
			return netlink.LinkSetHardwareAddr(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}, o.mac)
		}))
	}
	for key, value := range o.sysctls {
		progtest.Check(t, r.server.Sysctl(key, value))
	}
	r.fleet = &model.Fleet{Keys: model.Keys{Current: 1, Cookie: map[uint32][16]byte{1: {1, 2, 3}}}}
	for _, vip := range r.vips {
		r.fleet.Services = append(r.fleet.Services, model.Service{
			Name: vip.String(), VIP: vip, Protocol: model.ProtocolTCP, Ports: []uint16{servicePort}, CookieBits: o.bits,
			Affinity: model.AffinityCookie, Servers: []model.Server{{Name: "s", ID: serverID, Address: netip.MustParseAddr("10.9.0.2")}},
		})
		if service := &r.fleet.Services[len(r.fleet.Services)-1]; o.table {
			service.Affinity, service.Table.IndexBits = model.AffinityTable, model.MaxIndexBits
		}
	}
	if !o.plain {
		r.attach("")
	}
	return r
}

// connectByRouter puts a router between the ends; what the sender itself drops, its TCP notices.
func (r *rig) connectByRouter(mtu int) {
	t := r.t
	t.Helper()
	router := progtest.NewSpace(t, "r")
	r.router = router
	progtest.Check(t, router.ReceiveOn("1"))
	progtest.Check(t, router.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	progtest.Connect(t, r.client, "eth0", 1, router, "eth0", 2, 9, mtu)
	progtest.Connect(t, router, "eth1", 1, r.server, "eth0", 2, 8, mtu)
	progtest.Check(t, router.Sysctl("net/ipv4/ip_forward", "1"))
	progtest.Check(t, router.Sysctl("net/ipv6/conf/all/forwarding", "1"))
	for i, gateways := range [][2]string{{"10.8.0.2", "10.8.0.1"}, {"fd08::2", "fd08::1"}} {
		progtest.Check(t, router.Route(netip.PrefixFrom(r.vips[i], r.vips[i].BitLen()), 0,
			netspace.NextHop{Gateway: netip.MustParseAddr(gateways[0]), Interface: "eth1"}))
		client := netip.MustParsePrefix([]string{"10.9.0.0/24", "fd09::/64"}[i])
		progtest.Check(t, r.server.Route(client, 0, netspace.NextHop{Gateway: netip.MustParseAddr(gateways[1]), Interface: "eth0"}))
	}
	for _, name := range []string{"eth0", "eth1"} {
		wire, err := link.Load()
		progtest.Check(t, err)
		t.Cleanup(func() { wire.Close() })
		progtest.Check(t, router.Do(func() error {
			device, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			return wire.AttachLoss(device.Index)
		}))
		r.wires = append(r.wires, wire)
	}
}

// attach starts the agent's data path. Without a directory it pins in one of its own.
func (r *rig) attach(dir string) {
	r.t.Helper()
	if dir == "" {
		dir = r.pins()
	}
	r.agent = progtest.Attach(r.t, r.server, dir, r.mode, r.fleet)
}

func (r *rig) pins() string { return progtest.Pins(r.t) }

func (r *rig) publish() { progtest.Publish(r.t, r.agent, r.fleet) }

func (r *rig) count(name string) uint64 { return progtest.Count(r.t, r.agent, name) }

// listen serves "send me n bytes" requests (8 bytes each) on both VIPs until the test ends.
func (r *rig) listen(multipath bool) {
	r.t.Helper()
	config := net.ListenConfig{KeepAlive: -1}
	config.SetMultipathTCP(multipath)
	for _, vip := range r.vips {
		r.serve(r.listener(vip, config))
	}
}

func (r *rig) serve(listener net.Listener) {
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answer(conn)
		}
	}()
}

func answer(conn net.Conn) {
	defer conn.Close()
	var size uint64
	chunk := make([]byte, 256<<10)
	for binary.Read(conn, binary.BigEndian, &size) == nil {
		for size > 0 {
			n := min(size, uint64(len(chunk)))
			if _, err := conn.Write(chunk[:n]); err != nil {
				return
			}
			size -= n
		}
	}
}

func (r *rig) dial(vip netip.Addr) net.Conn {
	r.t.Helper()
	return r.dialFrom(0, vip)
}

// dialFrom dials from this port; 0: any.
func (r *rig) dialFrom(port int, vip netip.Addr) net.Conn {
	r.t.Helper()
	return r.dialBy(&net.TCPAddr{Port: port}, vip)
}

func (r *rig) dialBy(local *net.TCPAddr, vip netip.Addr) net.Conn {
	r.t.Helper()
	var conn net.Conn
	progtest.Check(r.t, r.client.Do(func() (err error) {
		dialer := net.Dialer{Timeout: progtest.Deadline, FallbackDelay: -1, KeepAlive: -1} // silence is silence
		dialer.LocalAddr = local
		dialer.SetMultipathTCP(false)
		conn, err = dialer.Dial("tcp", netip.AddrPortFrom(vip, servicePort).String())
		return err
	}))
	return conn
}

func fetch(conn net.Conn, size uint64) error {
	conn.SetDeadline(time.Now().Add(progtest.Deadline))
	if err := binary.Write(conn, binary.BigEndian, size); err != nil {
		return err
	}
	n, err := io.CopyN(io.Discard, conn, int64(size))
	if err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", n, size, err)
	}
	return nil
}

// browse makes connections of a few requests each, some at the same time.
func (r *rig) browse(connections int, sizes ...uint64) {
	r.t.Helper()
	var group sync.WaitGroup
	for i := range connections {
		conn := r.dial(r.vips[i%len(r.vips)])
		group.Go(func() {
			defer conn.Close()
			for _, size := range sizes {
				if err := fetch(conn, size); err != nil {
					r.t.Errorf("connection %d to %s: %v", i, conn.RemoteAddr(), err)
					return
				}
			}
		})
	}
	group.Wait()
}

// netstat reads the kernel's counters of both ends by name.
func (r *rig) netstat(names ...string) map[string]int {
	return progtest.Netstat(r.t, []*netspace.Space{r.client, r.server}, names...)
}

func (r *rig) rejects() map[string]int { return progtest.Rejects(r.t, r.client, r.server) }

// A watcher reads what arrives at the client and checks each TSval from the service: it has a valid cookie, is not smaller than the
// one before, and no further ahead of what the client has echoed than PAWS is sure to let pass.
type watcher struct {
	seen, wrong atomic.Uint64
	first       atomic.Value // string: what was wrong first
	flows       sync.Map     // address and port of the client -> lastSeen
	echoes      sync.Map     // address and port of the client -> uint32, its last TSecr
	recent      []string     // what was seen last, of all flows
	stop        func()
}

// lastSeen is what the last packet from the service to a client carried.
type lastSeen struct {
	value uint32
	tag   uint16
	flags byte // of TCP
}

func (r *rig) watch() *watcher {
	r.t.Helper()
	w := &watcher{}
	var fd int
	progtest.Check(r.t, r.client.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(progtest.Htons(unix.ETH_P_ALL)))
		return err
	}))
	progtest.Check(r.t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000}))
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	done, quit := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		const ethernet = 14
		buffer := make([]byte, ethernet+192)
		for {
			n, from, err := unix.Recvfrom(fd, buffer[ethernet:], unix.MSG_TRUNC)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				select {
				case <-quit:
					return
				default:
					continue
				}
			}
			if err != nil {
				return
			}
			address, ok := from.(*unix.SockaddrLinklayer)
			if !ok {
				continue
			}
			frame := buffer[ethernet:min(ethernet+n, len(buffer))]
			if address.Hatype == unix.ARPHRD_NONE { // of a tun device
				copy(buffer[12:], binary.NativeEndian.AppendUint16(nil, address.Protocol))
				frame = buffer[:min(ethernet+n, len(buffer))]
			}
			r.inspect(w, frame, address.Pkttype == unix.PACKET_OUTGOING)
		}
	}()
	w.stop = sync.OnceFunc(func() { close(quit); <-done; unix.Close(fd) })
	r.t.Cleanup(w.stop)
	return w
}

// verify ends the watch and fails the test if a packet was wrong, or none was seen.
func (w *watcher) verify(t *testing.T) {
	t.Helper()
	w.stop()
	t.Logf("%d timestamps on the wire", w.seen.Load())
	if w.wrong.Load() > 0 {
		t.Errorf("%d of %d timestamps without a valid cookie, or that step back or run ahead, first: %v", w.wrong.Load(), w.seen.Load(), w.first.Load())
	}
	if w.seen.Load() == 0 {
		t.Error("no timestamp was seen")
	}
}

func (r *rig) inspect(w *watcher, frame []byte, outgoing bool) {
	source, destination, tcp := segment(frame)
	if tcp != nil {
		value, echo, _ := timestamps(tcp)
		w.recent = append(w.recent[max(0, len(w.recent)-11):], fmt.Sprintf("%s > %s flags %#x sequence %#x acknowledges %#x TSval %#x TSecr %#x",
			source, destination, tcp[13], binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:]), value, echo))
	}
	if tcp != nil && outgoing && destination.Port() == servicePort {
		if _, echo, ok := timestamps(tcp); ok && echo != 0 {
			w.echoes.Store(source, echo)
		}
	}
	if tcp == nil || outgoing || source.Port() != servicePort || !slices.Contains(r.vips, source.Addr()) {
		return
	}
	value, _, ok := timestamps(tcp)
	if !ok {
		return
	}
	w.seen.Add(1)
	service := r.fleet.Service(source.Addr().String())
	tag, ok := r.tagIn(service, destination, value)
	if tcp[13]&2 != 0 {
		w.flows.Delete(destination)
		w.echoes.Delete(destination)
	}
	echo, echoed := w.echoes.Load(destination)
	ahead := echoed && int32(value-echo.(uint32)) > 1<<30+2<<service.CookieBits
	last, known := w.flows.Swap(destination, lastSeen{value, tag, tcp[13]})
	back := known && int32(value-last.(lastSeen).value) < 0
	if (!ok || back || ahead) && w.wrong.Add(1) == 1 {
		w.first.Store(fmt.Sprintf("%s > %s TSval %#x flags %#x, after %+v and an echo of %#x; the last packets:\n%s",
			source, destination, value, tcp[13], last, echo, strings.Join(w.recent, "\n")))
	}
}

// tagIn reads the cookie in a timestamp of a service for a client. ok: it is a valid one of the service's first server.
func (r *rig) tagIn(service *model.Service, client netip.AddrPort, value uint32) (tag uint16, ok bool) {
	if service.Affinity == model.AffinityHistory {
		return uint16(value & 3), byte(value&3) == columnOf(client.Port())
	}
	for epoch, key := range r.fleet.Keys.Cookie {
		hash := cookie.FlowHash(cookie.ServiceKey(key, service.VIP, service.Protocol), client, servicePort)
		text := cookie.Decode(service.CookieBits, value, hash)
		if cookie.EpochBit(service.CookieBits, value) == epoch&1 && text&service.MaxID() == service.Servers[0].ID {
			return text >> service.IDBits(), true
		}
	}
	return 0, false
}

// segment takes a frame apart; tcp is nil when it is not TCP.
func segment(frame []byte) (source, destination netip.AddrPort, tcp []byte) {
	var from, to netip.Addr
	switch {
	case len(frame) >= 54 && frame[12] == 8 && frame[13] == 0 && frame[23] == 6:
		from, to = netip.AddrFrom4([4]byte(frame[26:30])), netip.AddrFrom4([4]byte(frame[30:34]))
		tcp = frame[14+int(frame[14]&15)*4:]
	case len(frame) >= 74 && frame[12] == 0x86 && frame[13] == 0xdd && frame[20] == 6:
		from, to = netip.AddrFrom16([16]byte(frame[22:38])), netip.AddrFrom16([16]byte(frame[38:54]))
		tcp = frame[54:]
	default:
		return source, destination, nil
	}
	source = netip.AddrPortFrom(from, binary.BigEndian.Uint16(tcp))
	destination = netip.AddrPortFrom(to, binary.BigEndian.Uint16(tcp[2:]))
	return source, destination, tcp[:min(len(tcp), int(tcp[12]>>4)*4)]
}

// timestamps is a plain reading of RFC 7323's option.
func timestamps(tcp []byte) (value, echo uint32, ok bool) {
	for options := tcp[20:]; len(options) > 0; {
		switch {
		case options[0] == 0:
			return 0, 0, false
		case options[0] == 1:
			options = options[1:]
		case len(options) < 2 || options[1] < 2 || int(options[1]) > len(options):
			return 0, 0, false
		case options[0] == 8 && options[1] == 10:
			return binary.BigEndian.Uint32(options[2:]), binary.BigEndian.Uint32(options[6:]), true
		default:
			options = options[options[1]:]
		}
	}
	return 0, 0, false
}
