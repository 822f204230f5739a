package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Ports of RFC 5881 4.
const (
	port                        = 3784
	firstSource, lastSource int = 49152, 65535
)

// Packet is a control packet (RFC 5880 4.1) of a session without authentication.
type Packet struct {
	State       uint8
	Multiplier  uint8
	Mine, Yours uint32
	IntervalUS  uint32 // that both ends are to keep
}

const packetLength = 24

func (p Packet) bytes() []byte {
	b := []byte{1 << 5, p.State << 6, p.Multiplier, packetLength}
	for _, word := range []uint32{p.Mine, p.Yours, p.IntervalUS, p.IntervalUS, 0} {
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return b
}

func parse(b []byte) (p Packet, ok bool) {
	if len(b) != packetLength || b[0]>>5 != 1 || b[3] != packetLength || b[1]&0x07 != 0 {
		return p, false
	}
	return Packet{State: b[1] >> 6, Multiplier: b[2], Mine: binary.BigEndian.Uint32(b[4:]), Yours: binary.BigEndian.Uint32(b[8:]), IntervalUS: binary.BigEndian.Uint32(b[12:])}, true
}

// Prober asks load balancers by BFD over one hop (RFC 5881), in one family of addresses. A host has room for one: packets come to one port.
type Prober struct {
	receiving, sending *net.UDPConn
	ipv6               bool

	// Of these one is used. They know which control messages have been asked for.
	receiving4 *ipv4.PacketConn
	receiving6 *ipv6.PacketConn
}

// NewProber opens it in the calling thread's network namespace.
func NewProber(ipv6 bool) (*Prober, error) {
	p := &Prober{ipv6: ipv6}
	var err error
	if p.receiving, err = p.listen(port); err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			err = fmt.Errorf("%w: another agent with --gateway-table, or a routing daemon with BFD, runs here: stop it", err)
		}
		return nil, fmt.Errorf("receive BFD at UDP port %d: %w", port, err)
	}
	for source := firstSource; source <= lastSource; source++ {
		if p.sending, err = p.listen(source); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err == nil {
		err = p.setOptions()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("send BFD: %w", err), p.Close())
	}
	return p, nil
}

func (p *Prober) listen(port int) (*net.UDPConn, error) {
	network := map[bool]string{false: "udp4", true: "udp6"}[p.ipv6]
	return net.ListenUDP(network, &net.UDPAddr{Port: port})
}

func (p *Prober) setOptions() error {
	p.receiving4, p.receiving6 = ipv4.NewPacketConn(p.receiving), ipv6.NewPacketConn(p.receiving)
	if p.ipv6 {
		return errors.Join(p.receiving6.SetControlMessage(ipv6.FlagHopLimit|ipv6.FlagInterface, true), ipv6.NewPacketConn(p.sending).SetHopLimit(255))
	}
	return errors.Join(p.receiving4.SetControlMessage(ipv4.FlagTTL|ipv4.FlagInterface, true), ipv4.NewPacketConn(p.sending).SetTTL(255))
}

// Send sends a packet to a load balancer on a device's link. That nobody is there is no error.
func (p *Prober) Send(from, to netip.Addr, ifindex int, packet Packet) error {
	var err error
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port))
	if p.ipv6 {
		_, err = ipv6.NewPacketConn(p.sending).WriteTo(packet.bytes(), &ipv6.ControlMessage{Src: from.AsSlice(), IfIndex: ifindex}, at)
	} else {
		_, err = ipv4.NewPacketConn(p.sending).WriteTo(packet.bytes(), &ipv4.ControlMessage{Src: from.AsSlice(), IfIndex: ifindex}, at)
	}
	if errno := syscall.Errno(0); errors.As(err, &errno) && (errno == unix.EHOSTUNREACH || errno == unix.ECONNREFUSED) {
		return nil
	}
	return err
}

// Receive returns the next packet that comes from the link: its TTL says so (RFC 5881 5). An error is for good.
func (p *Prober) Receive() (from netip.Addr, ifindex int, packet Packet, err error) {
	for buffer := make([]byte, packetLength+1); ; {
		var n, ttl int
		var source net.Addr
		if p.ipv6 {
			var message *ipv6.ControlMessage
			if n, message, source, err = p.receiving6.ReadFrom(buffer); message != nil {
				ttl, ifindex = message.HopLimit, message.IfIndex
			}
		} else {
			var message *ipv4.ControlMessage
			if n, message, source, err = p.receiving4.ReadFrom(buffer); message != nil {
				ttl, ifindex = message.TTL, message.IfIndex
			}
		}
		if err != nil {
			return from, 0, packet, err
		}
		var ok bool
		if packet, ok = parse(buffer[:n]); ok && ttl == 255 {
			return source.(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone(""), ifindex, packet, nil
		}
	}
}

// Close ends Receive as well.
func (p *Prober) Close() error {
	var errs []error
	for _, conn := range []*net.UDPConn{p.receiving, p.sending} {
		if conn != nil {
			errs = append(errs, conn.Close())
		}
	}
	return errors.Join(errs...)
}
