// Counting sockets by sock_diag (linux/inet_diag.h).
package load

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/model"
)

// Specification constants (linux/inet_diag.h, linux/tcp_states.h), as far as package unix has none.
const (
	// The first version of the request lists sockets of both families in one walk through the kernel's tables, which is most of
	// what a list costs; the second, SOCK_DIAG_BY_FAMILY, needs a walk for each.
	listSockets       = 18 // TCPDIAG_GETSOCK
	requestSize       = 60 // struct inet_diag_req
	messageSize       = 72 // struct inet_diag_msg
	attributeBytecode = 1  // INET_DIAG_REQ_BYTECODE
	attributeV6Only   = 11 // INET_DIAG_SKV6ONLY

	stateEstablished = 1
	stateFinWait1    = 4
	stateCloseWait   = 8
	stateLastAck     = 9
	stateListen      = 10
	stateClosing     = 11

	// Sockets in FIN_WAIT2 are left out: most of them are remains of closed connections.
	liveStates = 1<<stateEstablished | 1<<stateFinWait1 | 1<<stateCloseWait | 1<<stateLastAck | 1<<stateClosing
)

// targets are services, by the addresses of their sockets.
type targets struct {
	services []Service
	followed bool                   // any of them is
	index    map[netip.AddrPort]int // in services
	ranges   map[netip.Addr][]ranged
	bytecode []byte // a filter for the kernel; nil: everything is listed and filtered here
}

// ranged is a range of ports of a service.
type ranged struct {
	ports   model.PortRange
	service int
}

// of returns the service whose socket has an address.
func (t *targets) of(local netip.AddrPort) (i int, ok bool) {
	if i, ok = t.index[local]; ok {
		return i, true
	}
	for _, r := range t.ranges[local.Addr()] {
		if r.ports.Contains(local.Port()) {
			return r.service, true
		}
	}
	return 0, false
}

// count is how many sockets there are of one service.
type count struct{ accepted, waiting uint32 }

func (c count) total() float64 { return float64(c.accepted) + float64(c.waiting) }

func newTargets(services []Service) *targets {
	t := &targets{services: slices.Clone(services), index: make(map[netip.AddrPort]int), ranges: make(map[netip.Addr][]ranged)}
	var addresses []netip.AddrPort
	for i, service := range t.services {
		t.services[i].Ports = slices.Clone(service.Ports)
		t.followed = t.followed || service.Followed
		if !service.counted() {
			continue
		}
		for _, vip := range service.vips() {
			for _, port := range service.Ports {
				address := netip.AddrPortFrom(vip, port)
				if _, taken := t.index[address]; !taken {
					t.index[address] = i
					addresses = append(addresses, address)
				}
			}
			for _, ports := range service.PortRanges {
				t.ranges[vip] = append(t.ranges[vip], ranged{ports, i})
			}
		}
	}
	for _, list := range t.ranges { // who has all ports leaves those to others that they name
		slices.SortStableFunc(list, func(a, b ranged) int { return cmp.Compare(b.ports.First, a.ports.First) })
	}
	if len(t.ranges) == 0 { // the filter knows no ranges
		t.bytecode = bytecode(addresses)
	}
	return t
}

func (t *targets) any() bool { return len(t.index)+len(t.ranges) > 0 }

// vips are the addresses that sockets of the service have.
func (s *Service) vips() (vips []netip.Addr) {
	for _, vip := range append([]netip.Addr{s.VIP}, s.MoreVIPs...) {
		vips = append(vips, vip.Unmap())
	}
	return vips
}

// sockets lists the sockets of one network namespace.
type sockets struct {
	fd       int
	sequence uint32
	buffer   []byte
}

func openSockets() (*sockets, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open a sock_diag socket: %w: the kernel needs CONFIG_INET_DIAG", err)
	}
	// The kernel answers at once; nothing may keep the agent waiting for ever.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("limit the time of a sock_diag socket: %w", err)
	}
	return &sockets{fd: fd, buffer: make([]byte, 64<<10)}, nil
}

func (s *sockets) close() {
	if s != nil {
		unix.Close(s.fd)
	}
}

// count counts the sockets of all services into counts, which is as long as the services.
func (s *sockets) count(t *targets, counts []count) error {
	clear(counts)
	return s.list(liveStates, t.bytecode, func(socket socket) {
		i, ok := t.of(socket.local)
		switch {
		case !ok:
		case socket.inode == 0 && (socket.state == stateEstablished || socket.state == stateCloseWait):
			counts[i].waiting++ // no process has a file of it yet; one that is closed is in another state
		default:
			counts[i].accepted++
		}
	})
}

// unheard returns one line for every service that has ports nobody listens on.
func (s *sockets) unheard(t *targets) (lines []string, err error) {
	heard := make(map[netip.AddrPort]bool)
	err = s.list(1<<stateListen, nil, func(socket socket) {
		heard[socket.local] = true
		if socket.local.Addr() == netip.IPv6Unspecified() && !socket.v6Only {
			heard[netip.AddrPortFrom(netip.IPv4Unspecified(), socket.local.Port())] = true
		}
	})
	if err != nil {
		return nil, err
	}
	for _, service := range t.services {
		var silent []string
		for _, vip := range service.vips() {
			any := netip.IPv4Unspecified()
			if vip.Is6() {
				any = netip.IPv6Unspecified()
			}
			for _, port := range service.Ports {
				address := netip.AddrPortFrom(vip, port)
				if service.counted() && !heard[address] && !heard[netip.AddrPortFrom(any, port)] {
					silent = append(silent, address.String())
				}
			}
		}
		if len(silent) > 0 {
			lines = append(lines, fmt.Sprintf("connections of %s: nothing listens on %s", service.Name, strings.Join(silent, ", ")))
		}
	}
	return lines, nil
}

// A socket is one line of the kernel's list.
type socket struct {
	local  netip.AddrPort
	state  uint8
	inode  uint32 // 0: no process has it open
	v6Only bool   // of listening sockets
}

// list calls each for every TCP socket that is in one of the states (a bit set) and that the filter lets through.
func (s *sockets) list(states uint32, filter []byte, each func(socket)) error {
	s.sequence++
	if err := unix.Sendto(s.fd, request(states, filter, s.sequence), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask for the list of sockets: %w", err)
	}
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the list of sockets: %w", err)
		}
		done, err := s.parse(s.buffer[:n], each)
		if done || err != nil {
			return err
		}
	}
}

// parse reads netlink messages; done after the last one of the list.
func (s *sockets) parse(messages []byte, each func(socket)) (done bool, err error) {
	for len(messages) >= unix.NLMSG_HDRLEN {
		length := int(binary.NativeEndian.Uint32(messages))
		if length < unix.NLMSG_HDRLEN || length > len(messages) {
			return true, errors.New("read the list of sockets: a message is cut off")
		}
		kind, sequence := binary.NativeEndian.Uint16(messages[4:]), binary.NativeEndian.Uint32(messages[8:])
		body := messages[unix.NLMSG_HDRLEN:length]
		messages = messages[min(align(length), len(messages)):]
		switch {
		case sequence != s.sequence: // the rest of a list that was given up
		case kind == unix.NLMSG_DONE:
			return true, nil
		case kind == unix.NLMSG_ERROR && len(body) >= 4:
			return true, fmt.Errorf("list sockets: %w", unix.Errno(-int32(binary.NativeEndian.Uint32(body))))
		case kind == listSockets && len(body) >= messageSize:
			each(parseSocket(body))
		}
	}
	return false, nil
}

// parseSocket reads struct inet_diag_msg and the attributes behind it.
func parseSocket(body []byte) socket {
	out := socket{state: body[1], inode: binary.NativeEndian.Uint32(body[68:])}
	address := netip.AddrFrom4([4]byte(body[8:12]))
	if body[0] == unix.AF_INET6 {
		address = netip.AddrFrom16([16]byte(body[8:24])).Unmap()
	}
	out.local = netip.AddrPortFrom(address, binary.BigEndian.Uint16(body[4:]))
	for rest := body[messageSize:]; len(rest) >= 4; {
		length := int(binary.NativeEndian.Uint16(rest))
		if length < 4 || length > len(rest) {
			break
		}
		if binary.NativeEndian.Uint16(rest[2:]) == attributeV6Only && length > 4 {
			out.v6Only = rest[4] != 0
		}
		rest = rest[min(align(length), len(rest)):]
	}
	return out
}

// request is a netlink message with struct inet_diag_req and the filter.
func request(states uint32, filter []byte, sequence uint32) []byte {
	size := unix.NLMSG_HDRLEN + requestSize
	if len(filter) > 0 {
		size += 4 + len(filter)
	}
	out := make([]byte, 0, size)
	out = binary.NativeEndian.AppendUint32(out, uint32(size))
	out = binary.NativeEndian.AppendUint16(out, listSockets)
	out = binary.NativeEndian.AppendUint16(out, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	out = binary.NativeEndian.AppendUint32(out, sequence)
	out = append(out, make([]byte, 4+requestSize-8)...) // our port, chosen by the kernel; whatever address
	out = binary.NativeEndian.AppendUint32(out, states)
	out = binary.NativeEndian.AppendUint32(out, 0) // tables
	if len(filter) > 0 {
		out = binary.NativeEndian.AppendUint16(out, uint16(4+len(filter)))
		out = binary.NativeEndian.AppendUint16(out, attributeBytecode)
		out = append(out, filter...)
	}
	return out
}

func align(length int) int { return (length + 3) &^ 3 }
