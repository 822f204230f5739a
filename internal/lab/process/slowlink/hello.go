package slowlink

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Fault is what happens to the segments of the ClientHello in each connection from an address. They are numbered from 0 as they first come. Each index is met once in
// a connection: what comes again passes.
type Fault struct {
	Source  netip.Addr `json:"source"`
	Lost    []int      `json:"lost,omitempty"`
	Doubled []int      `json:"doubled,omitempty"`
	Swapped []int      `json:"swapped,omitempty"` // with the one that follows
}

// Seen is what came from an address, and what was done to it.
type Seen struct {
	Connections int `json:"connections"`
	Segments    int `json:"segments"` // of ClientHellos, each once
	Most        int `json:"most"`     // of a ClientHello
	Lost        int `json:"lost"`
	Doubled     int `json:"doubled"`
	Swapped     int `json:"swapped"`
}

// Implementation constants.
const (
	recordHeader    = 5
	recordHandshake = 22
)

// clientHellos finds the segments of ClientHellos among the frames of one direction.
type clientHellos struct {
	faults map[netip.Addr]*Fault
	seen   map[netip.Addr]*Seen
	flows  map[[2]netip.AddrPort]*clientHello
}

// clientHello is one under way.
type clientHello struct {
	begin    uint32   // sequence number of its first byte
	length   uint32   // 0: not known yet
	segments []uint32 // where they begin, from begin on
	held     []byte   // one that is to follow the next
}

func newClientHellos(faults []Fault) *clientHellos {
	h := &clientHellos{faults: map[netip.Addr]*Fault{}, seen: map[netip.Addr]*Seen{}, flows: map[[2]netip.AddrPort]*clientHello{}}
	for i := range faults {
		h.faults[faults[i].Source] = &faults[i]
		h.seen[faults[i].Source] = &Seen{}
	}
	return h
}

// pass returns what is to be sent in place of a frame.
func (h *clientHellos) pass(frame []byte) [][]byte {
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true, Lazy: true})
	ip, _ := packet.NetworkLayer().(*layers.IPv4)
	tcp, _ := packet.TransportLayer().(*layers.TCP)
	if ip == nil || tcp == nil {
		return [][]byte{frame}
	}
	source, _ := netip.AddrFromSlice(ip.SrcIP)
	destination, _ := netip.AddrFromSlice(ip.DstIP)
	fault, seen := h.faults[source.Unmap()], h.seen[source.Unmap()]
	if fault == nil {
		return [][]byte{frame}
	}
	flow := [2]netip.AddrPort{netip.AddrPortFrom(source.Unmap(), uint16(tcp.SrcPort)), netip.AddrPortFrom(destination.Unmap(), uint16(tcp.DstPort))}
	if tcp.SYN {
		if one := h.flows[flow]; one == nil || one.begin != tcp.Seq+1 {
			h.flows[flow] = &clientHello{begin: tcp.Seq + 1}
			seen.Connections++
		}
		return [][]byte{frame}
	}
	one := h.flows[flow]
	if one == nil || tcp.FIN || tcp.RST {
		return [][]byte{frame}
	}
	sent := one.pass(tcp.Seq-one.begin, tcp.Payload, frame, fault, seen)
	if one.held != nil && len(sent) > 0 { // what is held goes behind what follows it, whatever that is
		sent = append(sent, one.held)
		one.held = nil
	}
	return sent
}

// pass is that of a segment with so many bytes of its connection before it.
func (o *clientHello) pass(offset uint32, data, frame []byte, fault *Fault, seen *Seen) [][]byte {
	if offset == 0 && o.length == 0 && len(data) >= recordHeader && data[0] == recordHandshake {
		o.length = recordHeader + uint32(binary.BigEndian.Uint16(data[3:]))
	}
	if len(data) == 0 || offset >= o.length || slices.Contains(o.segments, offset) {
		return [][]byte{frame}
	}
	i := len(o.segments)
	o.segments = append(o.segments, offset)
	seen.Segments++
	seen.Most = max(seen.Most, i+1)
	switch {
	case slices.Contains(fault.Lost, i):
		seen.Lost++
		return nil
	case slices.Contains(fault.Doubled, i):
		seen.Doubled++
		return [][]byte{frame, frame}
	case slices.Contains(fault.Swapped, i) && offset+uint32(len(data)) < o.length:
		seen.Swapped++
		o.held = frame
		return nil
	}
	return [][]byte{frame}
}
