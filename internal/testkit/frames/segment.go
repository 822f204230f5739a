package frames

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// A Segment is one TCP segment over IPv4, without payload unless it was seen with one.
type Segment struct {
	From, To        net.HardwareAddr
	Client, Service netip.AddrPort
	SYN, FIN        bool // ACK is set unless SYN is
	Sequence        uint32
	Acknowledged    uint32
	Value, Echo     uint32 // of the timestamp option
}

// Frame is the segment as it goes over the wire.
func (s *Segment) Frame() ([]byte, error) {
	ethernet := &layers.Ethernet{SrcMAC: s.From, DstMAC: s.To, EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{
		Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: s.Client.Addr().AsSlice(), DstIP: s.Service.Addr().AsSlice(),
		Flags: layers.IPv4DontFragment,
	}
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(s.Client.Port()), DstPort: layers.TCPPort(s.Service.Port()), Seq: s.Sequence, Ack: s.Acknowledged,
		SYN: s.SYN, FIN: s.FIN, ACK: !s.SYN, Window: 65535,
	}
	stamp := make([]byte, 8)
	binary.BigEndian.PutUint32(stamp, s.Value)
	binary.BigEndian.PutUint32(stamp[4:], s.Echo)
	pad := layers.TCPOption{OptionType: layers.TCPOptionKindNop}
	if s.SYN {
		tcp.Options = append(tcp.Options, layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 180}})
	}
	tcp.Options = append(tcp.Options, pad, pad,
		layers.TCPOption{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: stamp})
	buffer := gopacket.NewSerializeBuffer()
	err := tcp.SetNetworkLayerForChecksum(ip)
	if err == nil {
		err = gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ethernet, ip, tcp)
	}
	if err != nil {
		return nil, fmt.Errorf("make a segment: %w", err)
	}
	return buffer.Bytes(), nil
}

// Datagram is one of UDP over IPv4, as it goes over the wire.
func Datagram(from, to net.HardwareAddr, client, service netip.AddrPort, payload []byte) ([]byte, error) {
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: client.Addr().AsSlice(), DstIP: service.Addr().AsSlice(), Flags: layers.IPv4DontFragment}
	udp := &layers.UDP{SrcPort: layers.UDPPort(client.Port()), DstPort: layers.UDPPort(service.Port())}
	buffer := gopacket.NewSerializeBuffer()
	err := udp.SetNetworkLayerForChecksum(ip)
	if err == nil {
		err = gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv4}, ip, udp, gopacket.Payload(payload))
	}
	if err != nil {
		return nil, fmt.Errorf("make a datagram: %w", err)
	}
	return buffer.Bytes(), nil
}

// Parse reads the segment in a frame; ok tells whether it is TCP with timestamps over IPv4.
func Parse(frame []byte) (s Segment, ok bool) {
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	ethernet, _ := packet.LinkLayer().(*layers.Ethernet)
	ip, _ := packet.NetworkLayer().(*layers.IPv4)
	tcp, _ := packet.TransportLayer().(*layers.TCP)
	if ethernet == nil || ip == nil || tcp == nil {
		return s, false
	}
	s = Segment{
		From: ethernet.SrcMAC, To: ethernet.DstMAC, Client: endpoint(ip.SrcIP, uint16(tcp.SrcPort)), Service: endpoint(ip.DstIP, uint16(tcp.DstPort)),
		SYN: tcp.SYN, FIN: tcp.FIN, Sequence: tcp.Seq, Acknowledged: tcp.Ack,
	}
	for _, option := range tcp.Options {
		if option.OptionType == layers.TCPOptionKindTimestamps && len(option.OptionData) == 8 {
			s.Value, s.Echo = binary.BigEndian.Uint32(option.OptionData), binary.BigEndian.Uint32(option.OptionData[4:])
			ok = true
		}
	}
	return s, ok
}

func endpoint(address net.IP, port uint16) netip.AddrPort {
	parsed, _ := netip.AddrFromSlice(address)
	return netip.AddrPortFrom(parsed.Unmap(), port)
}
