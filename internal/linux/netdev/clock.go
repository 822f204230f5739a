package netdev

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// NodeClockMS is the clock that the data path compares servers' clocks with: monotonic, coarse, in ms.
func NodeClockMS() uint32 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		panic(err) // the clock exists since Linux 2.6.32
	}
	return uint32(now.Nano() / int64(time.Millisecond))
}

// ErrNoTimestamp says that a server's SYN-ACK has no timestamp option.
var ErrNoTimestamp = errors.New("the server does not use TCP timestamps")

// Offset is between what bounds TSval of a server less NodeClockMS lies. It is as wide as an answer took, and as long as nobody looked at it: on a
// busy host that may be long, and says nothing about the server.
type Offset struct{ low, high uint32 }

// meet returns what both allow; ok: they may be of one clock.
func (o Offset) meet(other Offset) (both Offset, ok bool) {
	if int32(other.low-o.low) > 0 {
		o.low = other.low
	}
	if int32(other.high-o.high) < 0 {
		o.high = other.high
	}
	return o, int32(o.high-o.low) >= -clockTickMS
}

// timestampOffset opens a connection to the server and compares the TSval of its SYN-ACK with the clock before and after. A server
// with net.ipv4.tcp_timestamps=2 has the same offset for every connection; the default, 1, a random one for each 4-tuple.
func timestampOffset(ctx context.Context, server netip.AddrPort) (offset Offset, err error) {
	network := "ip4:tcp"
	if server.Addr().Is6() {
		network = "ip6:tcp"
	}
	raw, err := net.ListenPacket(network, "")
	if err != nil {
		return offset, fmt.Errorf("listen for the answer of %s: %w: root is needed", server, err)
	}
	defer raw.Close()
	// Closing the connection with a reset leaves nothing behind on the server.
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{}}
	dialer.SetMultipathTCP(false)
	before := NodeClockMS()
	connection, err := dialer.DialContext(ctx, "tcp", server.String())
	if err != nil {
		return offset, err
	}
	defer connection.Close()
	_ = connection.(*net.TCPConn).SetLinger(0)
	port := uint16(connection.LocalAddr().(*net.TCPAddr).Port)
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(time.Second)
	}
	if err := raw.SetReadDeadline(deadline); err != nil {
		return offset, err
	}
	segment := make([]byte, 128)
	for {
		n, from, err := raw.ReadFrom(segment)
		if err != nil {
			return offset, fmt.Errorf("wait for the answer of %s: %w", server, err)
		}
		source, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP)
		if source.Unmap() != server.Addr() || !isSYNACK(segment[:n], server.Port(), port) {
			continue
		}
		value, err := timestampValue(segment[20:n])
		return Offset{value - NodeClockMS(), value - before}, err
	}
}

const (
	clockConnections = 4
	clockTimeout     = time.Second // for each
	clockTickMS      = 20          // NodeClockMS stands still for up to 10 ms
)

// ServerClock opens a few connections to a server and reports whether all may have the same clock, and the most that its offset can be: the data
// path restores what servers sent before now, so too much does no harm, and too little would.
func ServerClock(ctx context.Context, server netip.AddrPort) (offset uint32, one bool, err error) {
	var all Offset
	for i := range clockConnections {
		attempt, cancel := context.WithTimeout(ctx, clockTimeout)
		next, err := timestampOffset(attempt, server)
		cancel()
		if err != nil {
			return 0, false, err
		}
		if i == 0 {
			all = next
			continue
		}
		var same bool
		if all, same = all.meet(next); !same {
			return 0, false, nil
		}
	}
	return all.high, true, nil
}

func isSYNACK(segment []byte, source, destination uint16) bool {
	const syn, ack = 0x02, 0x10
	return len(segment) >= 20 && segment[13]&(syn|ack) == syn|ack &&
		binary.BigEndian.Uint16(segment) == source && binary.BigEndian.Uint16(segment[2:]) == destination
}

// timestampValue finds TSval among TCP options.
func timestampValue(options []byte) (uint32, error) {
	for len(options) > 1 {
		kind, length := options[0], int(options[1])
		switch {
		case kind == 1:
			length = 1
		case kind == 0, length < 2, length > len(options):
			return 0, ErrNoTimestamp
		case kind == 8 && length == 10:
			return binary.BigEndian.Uint32(options[2:]), nil
		}
		options = options[length:]
	}
	return 0, ErrNoTimestamp
}
