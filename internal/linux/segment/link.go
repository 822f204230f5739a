package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const (
	ipv6Header = 40
	hopLimit   = 255  // RFC 4861: of who is on the link
	frameMax   = 2048 // more than what is of use
	framesMax  = 1000 // that are looked at, at once: whoever floods the device holds nothing up

	receiveBuffer = 4 << 20 // bytes, of answers about thousands of VIPs
	groupsMax     = 128     // of a socket: Linux < 6.8 has 20 KiB for them (optmem_max)
)

// group is one that VIPs with the same last 24 bits share.
type group struct {
	member *ipv6.PacketConn
	vips   map[netip.Addr]bool
}

// Frame is what a host of the segment has said.
type Frame struct {
	From    net.HardwareAddr // that answers, or that the frame is from
	VIP     netip.Addr       // that it answers for or announces; not valid: Payload counts
	Payload []byte           // of the EtherType of advertisements
}

// Link is a device that ARP, Neighbor Discovery and advertisements come in by. Its methods are for one caller at a time.
type Link struct {
	Device    *net.Interface
	etherType uint16
	local     netip.Addr            // IPv6, of this link alone; not valid: it has none
	sockets   [3]int                // ARP, Neighbor Discovery, advertisements
	members   []*ipv6.PacketConn    // of groups, groupsMax each
	groups    map[netip.Addr]*group // that solicitations of VIPs go to
}

// Find returns a device. nil without an error: there is none of that name.
func Find(name string) (*net.Interface, error) {
	found, err := netlink.LinkByName(name)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", name, err)
	}
	attrs := found.Attrs()
	return &net.Interface{Index: attrs.Index, MTU: attrs.MTU, Name: attrs.Name, HardwareAddr: attrs.HardwareAddr, Flags: attrs.Flags}, nil
}

// OpenLink opens a device. etherType is that of advertisements.
func OpenLink(device *net.Interface, etherType uint16) (*Link, error) {
	if len(device.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s has no Ethernet address", device.Name)
	}
	l := &Link{Device: device, etherType: etherType, local: linkLocal(device), sockets: [3]int{-1, -1, -1}, groups: map[netip.Addr]*group{}}
	for i, protocol := range []uint16{unix.ETH_P_ARP, unix.ETH_P_IPV6, etherType} {
		var err error
		if l.sockets[i], err = listen(device.Index, protocol); err != nil {
			l.Close()
			return nil, fmt.Errorf("listen on %s: %w", device.Name, err)
		}
	}
	return l, nil
}

// Is reports whether a device is the one that was opened, with the addresses that it had then.
func (l *Link) Is(device *net.Interface) bool {
	return l.Device.Index == device.Index && slices.Equal(l.Device.HardwareAddr, device.HardwareAddr) && l.local == linkLocal(device)
}

func linkLocal(device *net.Interface) netip.Addr {
	addresses, err := device.Addrs()
	if err != nil {
		return netip.Addr{} // as if it had none
	}
	for _, address := range addresses {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
			return prefix.Addr()
		}
	}
	return netip.Addr{}
}

// AddressOf is an address that the kernel knows a host of the segment by, other than the VIP that it answers for; not valid: it knows none.
func (l *Link) AddressOf(mac [6]byte, vip netip.Addr) (address netip.Addr) {
	known, err := netlink.NeighList(l.Device.Index, netlink.FAMILY_ALL)
	if err != nil {
		return address
	}
	for i := range known {
		found, valid := netip.AddrFromSlice(known[i].IP)
		if found = found.Unmap(); !valid || !slices.Equal(known[i].HardwareAddr, mac[:]) || found == vip || found.IsLinkLocalUnicast() {
			continue
		}
		if !address.IsValid() || found.Is4() == vip.Is4() && found.Less(address) {
			address = found
		}
	}
	return address
}

// arpAnswers lets replies through, and announcements, whose sender asks for its own address: whoever floods the segment with requests holds nothing up.
var arpAnswers = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 14 + 6, Size: 2}, bpf.JumpIf{Val: uint32(arp.OperationReply), SkipTrue: 4},
	bpf.LoadAbsolute{Off: 14 + 14, Size: 4}, bpf.TAX{},
	bpf.LoadAbsolute{Off: 14 + 24, Size: 4}, bpf.JumpIfX{Cond: bpf.JumpEqual, SkipFalse: 1},
	bpf.RetConstant{Val: frameMax}, bpf.RetConstant{},
}

// neighborAdvertisements lets nothing else of IPv6 through: offsets with an Ethernet header.
var neighborAdvertisements = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 14 + 6, Size: 1}, bpf.JumpIf{Val: unix.IPPROTO_ICMPV6, SkipFalse: 3},
	bpf.LoadAbsolute{Off: 14 + ipv6Header, Size: 1}, bpf.JumpIf{Val: uint32(ipv6.ICMPTypeNeighborAdvertisement), SkipFalse: 1},
	bpf.RetConstant{Val: frameMax}, bpf.RetConstant{},
}

func listen(ifindex int, protocol uint16) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0) // nothing arrives before it is bound
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	switch {
	case err != nil:
	case protocol == unix.ETH_P_ARP:
		err = filter(fd, arpAnswers)
	case protocol == unix.ETH_P_IPV6:
		err = filter(fd, neighborAdvertisements)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(protocol), Ifindex: ifindex})
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func filter(fd int, program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	var instructions []unix.SockFilter
	for _, i := range raw {
		instructions = append(instructions, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]})
}

func htons(v uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)) }

// Close stops listening, and leaves all groups.
func (l *Link) Close() {
	for _, fd := range l.sockets {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	for _, member := range l.members {
		member.Close()
	}
}

// Speaks says why VIPs of IPv6 cannot be asked for, empty: they can.
func (l *Link) Speaks(vip netip.Addr) string {
	if vip.Is6() && !l.local.IsValid() {
		return fmt.Sprintf("interface %s has no link-local IPv6 address", l.Device.Name)
	}
	return ""
}

// Waker waits. Wake may be called at any time, by anybody; it takes no lock.
type Waker struct{ fd int }

// NewWaker makes one that lasts as long as the process.
func NewWaker() (*Waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("wait for frames: %w", err)
	}
	return &Waker{fd}, nil
}

// Wake ends a Wait.
func (w *Waker) Wake() { unix.Write(w.fd, binary.NativeEndian.AppendUint64(nil, 1)) }

// Wait waits until something has come in by a link, Wake was called, or time is up. nil: there is no link.
func (w *Waker) Wait(l *Link, most time.Duration) {
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	if l != nil {
		for _, fd := range l.sockets {
			fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
	}
	unix.Poll(fds, int(max(0, (most+time.Millisecond-1)/time.Millisecond))) // interrupted: the caller looks, and waits again
	var woken [8]byte
	unix.Read(w.fd, woken[:])
}

// Drain returns what has come in by now. A process that had to wait for the CPU looks at it before it misses anybody.
func (l *Link) Drain() (frames []Frame, err error) {
	var text [frameMax]byte
	for i, fd := range l.sockets {
		for range framesMax {
			n, from, failed := unix.Recvfrom(fd, text[:], unix.MSG_DONTWAIT)
			if failed != nil {
				if !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR) {
					err = fmt.Errorf("read from %s: %w", l.Device.Name, failed)
				}
				break
			}
			if at, ok := from.(*unix.SockaddrLinklayer); !ok || at.Pkttype == unix.PACKET_OUTGOING || at.Pkttype == unix.PACKET_OTHERHOST {
				continue
			}
			if frame, ok := l.parse(i, text[:n]); ok {
				frames = append(frames, frame)
			}
		}
	}
	return frames, err
}

func (l *Link) parse(socket int, text []byte) (Frame, bool) {
	var frame ethernet.Frame
	if frame.UnmarshalBinary(text) != nil {
		return Frame{}, false
	}
	switch socket {
	case 0:
		return parseARP(frame.Payload)
	case 1:
		return parseAdvertisement(frame.Payload)
	}
	return Frame{From: frame.Source, Payload: frame.Payload}, true
}

// parseARP takes replies, and requests in which a host announces its own address. A probe is from no address.
func parseARP(text []byte) (Frame, bool) {
	var p arp.Packet
	if p.UnmarshalBinary(text) != nil || !p.SenderIP.Is4() || p.SenderIP.IsUnspecified() || len(p.SenderHardwareAddr) != 6 {
		return Frame{}, false
	}
	if p.Operation != arp.OperationReply && p.SenderIP != p.TargetIP {
		return Frame{}, false
	}
	return Frame{From: p.SenderHardwareAddr, VIP: p.SenderIP}, true
}

func parseAdvertisement(text []byte) (Frame, bool) {
	if len(text) < ipv6Header || text[7] != hopLimit || text[6] != unix.IPPROTO_ICMPV6 {
		return Frame{}, false
	}
	length := int(binary.BigEndian.Uint16(text[4:]))
	if length > len(text)-ipv6Header {
		return Frame{}, false
	}
	message, err := ndp.ParseMessage(text[ipv6Header : ipv6Header+length])
	advertisement, is := message.(*ndp.NeighborAdvertisement)
	if err != nil || !is {
		return Frame{}, false
	}
	for _, option := range advertisement.Options {
		if link, is := option.(*ndp.LinkLayerAddress); is && link.Direction == ndp.Target && len(link.Addr) == 6 {
			return Frame{From: link.Addr, VIP: advertisement.TargetAddress}, true
		}
	}
	return Frame{}, false
}

var (
	noMAC    = net.HardwareAddr{0, 0, 0, 0, 0, 0}
	allNodes = netip.MustParseAddr("ff02::1")
)

// multicast is the Ethernet address of a group (RFC 2464 7).
func multicast(group netip.Addr) net.HardwareAddr {
	bytes := group.As16()
	return net.HardwareAddr{0x33, 0x33, bytes[12], bytes[13], bytes[14], bytes[15]}
}

// Probe asks who has a VIP, from no address (RFC 5227 2.1.1): nobody learns anything by it. to: one host; empty: all.
func (l *Link) Probe(vip netip.Addr, to net.HardwareAddr) error {
	if vip.Is4() {
		if len(to) == 0 {
			to = ethernet.Broadcast
		}
		return l.arp(arp.OperationRequest, netip.IPv4Unspecified(), noMAC, vip, to)
	}
	group, err := ndp.SolicitedNodeMulticast(vip)
	if err != nil {
		return err
	}
	destination := vip
	if len(to) == 0 {
		destination, to = group, multicast(group)
	}
	message := &ndp.NeighborSolicitation{TargetAddress: vip, Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: l.Device.HardwareAddr}}}
	return l.neighbor(message, l.local, destination, to)
}

// Announce says to all that a VIP is at this host (RFC 5227 2.3, RFC 4861 7.2.6).
func (l *Link) Announce(vip netip.Addr) error {
	if vip.Is4() {
		return l.arp(arp.OperationRequest, vip, noMAC, vip, ethernet.Broadcast)
	}
	message := &ndp.NeighborAdvertisement{Override: true, TargetAddress: vip, Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: l.Device.HardwareAddr}}}
	return l.neighbor(message, vip, allNodes, multicast(allNodes))
}

func (l *Link) arp(operation arp.Operation, sender netip.Addr, targetMAC net.HardwareAddr, target netip.Addr, to net.HardwareAddr) error {
	packet, err := arp.NewPacket(operation, l.Device.HardwareAddr, sender, targetMAC, target)
	if err != nil {
		return err
	}
	payload, err := packet.MarshalBinary()
	if err != nil {
		return err
	}
	return l.send(0, ethernet.EtherTypeARP, to, payload)
}

func (l *Link) neighbor(message ndp.Message, source, destination netip.Addr, to net.HardwareAddr) error {
	source = source.WithZone("")
	payload, err := ndp.MarshalMessageChecksum(message, source, destination)
	if err != nil {
		return err
	}
	header := append([]byte{0x60, 0, 0, 0}, binary.BigEndian.AppendUint16(nil, uint16(len(payload)))...)
	header = append(header, unix.IPPROTO_ICMPV6, hopLimit)
	header = append(append(header, source.AsSlice()...), destination.AsSlice()...)
	return l.send(1, ethernet.EtherTypeIPv6, to, append(header, payload...))
}

// Advertise sends an advertisement to all.
func (l *Link) Advertise(payload []byte) error {
	return l.send(2, ethernet.EtherType(l.etherType), ethernet.Broadcast, payload)
}

func (l *Link) send(socket int, etherType ethernet.EtherType, to net.HardwareAddr, payload []byte) error {
	frame := ethernet.Frame{Destination: to, Source: l.Device.HardwareAddr, EtherType: etherType, Payload: payload}
	text, err := frame.MarshalBinary()
	if err == nil {
		err = unix.Sendto(l.sockets[socket], text, 0, &unix.SockaddrLinklayer{Protocol: htons(uint16(etherType)), Ifindex: l.Device.Index})
	}
	if err != nil {
		return fmt.Errorf("send by %s: %w", l.Device.Name, err)
	}
	return nil
}

// Join makes the device, and switches that look at MLD, let solicitations of a VIP through, as long as the process lives.
func (l *Link) Join(vip netip.Addr) error {
	if !vip.Is6() || !l.local.IsValid() {
		return nil
	}
	address, err := ndp.SolicitedNodeMulticast(vip)
	if err != nil {
		return err
	}
	joined := l.groups[address]
	if joined == nil {
		if len(l.groups) >= groupsMax*len(l.members) {
			socket, err := net.ListenPacket("udp6", "[::]:0")
			if err != nil {
				return fmt.Errorf("receive who asks for %s: %w", vip, err)
			}
			l.members = append(l.members, ipv6.NewPacketConn(socket))
		}
		joined = &group{l.members[len(l.members)-1], map[netip.Addr]bool{}}
		if err := joined.member.JoinGroup(l.Device, &net.UDPAddr{IP: address.AsSlice()}); err != nil {
			return fmt.Errorf("receive who asks for %s: %w", vip, err)
		}
		l.groups[address] = joined
	}
	joined.vips[vip] = true
	return nil
}

// Leave is the opposite.
func (l *Link) Leave(vip netip.Addr) error {
	if !vip.Is6() {
		return nil
	}
	address, err := ndp.SolicitedNodeMulticast(vip)
	joined := l.groups[address]
	if err != nil || joined == nil {
		return err
	}
	if delete(joined.vips, vip); len(joined.vips) > 0 {
		return nil
	}
	delete(l.groups, address)
	if err := joined.member.LeaveGroup(l.Device, &net.UDPAddr{IP: address.AsSlice()}); err != nil {
		return fmt.Errorf("receive no more who asks for %s: %w", vip, err)
	}
	return nil
}
