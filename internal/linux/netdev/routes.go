package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// atOnce is how many questions are put to the kernel in one message: their answers must fit into a socket's buffer of the default size.
const atOnce = 32

// A route is the kernel's answer about a destination.
type route struct {
	kind            uint8         // RTN_UNICAST and the like
	err             syscall.Errno // 0: none
	ifindex         int
	mtu             uint32     // 0: the device's
	source, gateway netip.Addr // zero: none
}

// unanswered: the socket had no room for the answer.
const unanswered = unix.EAGAIN

// Routes are what the kernel has answered about destinations. The zero value has asked nothing.
type Routes struct {
	Asked    int                   // questions to the kernel so far
	by       map[netip.Addr]uint32 // index into distinct
	distinct []route               // many destinations share one
	index    map[route]uint32
}

func (r *Routes) set(address netip.Addr, to route) {
	i, known := r.index[to]
	if !known {
		i = uint32(len(r.distinct))
		r.distinct, r.index[to] = append(r.distinct, to), i
	}
	r.by[address] = i
}

// Ask finds the routes to addresses in the calling thread's network namespace: one question for each that is not known yet, many in a message, all by one
// socket.
func (r *Routes) Ask(addresses []netip.Addr) error {
	if r.by == nil {
		r.by, r.index = make(map[netip.Addr]uint32, len(addresses)), map[route]uint32{}
	}
	unknown := make([]netip.Addr, 0, len(addresses))
	for _, address := range addresses {
		if _, known := r.by[address]; !known {
			unknown = append(unknown, address)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("look up routes: %w", err)
	}
	defer unix.Close(socket)
	for batch := range slices.Chunk(unknown, atOnce) {
		if err := r.exchange(socket, batch); err != nil {
			return fmt.Errorf("look up routes: %w", err)
		}
	}
	return nil
}

// Add takes over what others have found.
func (r *Routes) Add(others *Routes) {
	if r.by == nil {
		*r = *others
		return
	}
	r.Asked += others.Asked
	for address, i := range others.by {
		r.set(address, others.distinct[i])
	}
}

// get is the route to an address: known, or asked for.
func (r *Routes) get(address netip.Addr) (route, error) {
	i, known := r.by[address]
	if !known {
		if err := r.Ask([]netip.Addr{address}); err != nil {
			return route{}, err
		}
		i = r.by[address]
	}
	found := r.distinct[i]
	if found.err != 0 {
		return route{}, found.err
	}
	return found, nil
}

// exchange asks about a batch; where the socket had no room for all answers, about one at a time. The kernel has answered when the question is sent.
func (r *Routes) exchange(socket int, batch []netip.Addr) error {
	var buffer [8192]byte
	message, answered := buffer[:0], [atOnce]bool{}
	for i, address := range batch {
		message = appendQuestion(message, uint32(i), address)
	}
	r.Asked += len(batch)
	if err := unix.Sendto(socket, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for received := 0; received < len(batch); {
		size, from, err := unix.Recvfrom(socket, buffer[:], unix.MSG_DONTWAIT)
		if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR) {
			continue // the first tells of answers that were dropped
		}
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return err
		}
		if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != nl.PidKernel {
			continue
		}
		answers, err := syscall.ParseNetlinkMessage(buffer[:size])
		if err != nil {
			return err
		}
		for i := range answers {
			if number := answers[i].Header.Seq; number < uint32(len(batch)) {
				received++
				if to := parseRoute(&answers[i]); to.err != unanswered {
					r.set(batch[number], to)
					answered[number] = true
				}
			}
		}
	}
	for i, address := range batch {
		switch {
		case answered[i]:
		case len(batch) == 1:
			r.set(address, route{err: unanswered})
		default:
			if err := r.exchange(socket, batch[i:i+1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendQuestion appends RTM_GETROUTE for one destination (rtnetlink(7)).
func appendQuestion(to []byte, number uint32, address netip.Addr) []byte {
	family, bytes := byte(unix.AF_INET6), address.AsSlice()
	if address.Is4() {
		family = unix.AF_INET
	}
	order := binary.NativeEndian
	to = order.AppendUint32(to, uint32(unix.SizeofNlMsghdr+unix.SizeofRtMsg+unix.SizeofRtAttr+len(bytes)))
	to = order.AppendUint16(to, unix.RTM_GETROUTE)
	to = order.AppendUint16(to, unix.NLM_F_REQUEST)
	to = order.AppendUint32(to, number)
	to = order.AppendUint32(to, 0) // port: the kernel's
	to = append(to, family, byte(8*len(bytes)), 0, 0, 0, 0, 0, 0)
	to = order.AppendUint32(to, unix.RTM_F_LOOKUP_TABLE)
	to = order.AppendUint16(to, uint16(unix.SizeofRtAttr+len(bytes)))
	to = order.AppendUint16(to, unix.RTA_DST)
	return append(to, bytes...)
}

func parseRoute(m *syscall.NetlinkMessage) (r route) {
	order := binary.NativeEndian
	if m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4 {
		return route{err: syscall.Errno(-int32(order.Uint32(m.Data)))}
	}
	if m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg {
		return route{err: unix.EBADMSG}
	}
	attributes, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
	if err != nil {
		return route{err: unix.EBADMSG}
	}
	r.kind = nl.DeserializeRtMsg(m.Data).Type
	for _, a := range attributes {
		switch value := a.Value; a.Attr.Type {
		case unix.RTA_OIF:
			r.ifindex = int(order.Uint32(value))
		case unix.RTA_PREFSRC:
			r.source, _ = netip.AddrFromSlice(value)
		case unix.RTA_GATEWAY:
			r.gateway, _ = netip.AddrFromSlice(value)
		case unix.RTA_VIA: // IPv4 by way of an IPv6 neighbour
			if len(value) > 2 { // struct rtvia: the family, and its address
				r.gateway, _ = netip.AddrFromSlice(value[2:])
			}
		case unix.RTA_METRICS:
			if mtu := attribute(value, unix.RTAX_MTU); len(mtu) == 4 {
				r.mtu = order.Uint32(mtu)
			}
		}
	}
	r.source, r.gateway = r.source.Unmap(), r.gateway.Unmap()
	return r
}
