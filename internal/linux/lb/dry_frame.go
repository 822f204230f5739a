// The frame of a dry run.
package lb

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
	"github.com/ballast-lb/ballast/internal/model"
)

// MadeUp is a packet that no client has sent. Client and VIP are of one family.
type MadeUp struct {
	Client, VIP     netip.AddrPort
	UDP             bool // else TCP
	Flags           byte // of TCP: model.TCPSyn and others
	Timestamps      bool // TCP: with the option (RFC 7323)
	Timestamp, Echo uint32
	Payload         []byte
}

// frame is the packet as it comes in by a device: with the TCP options that Linux sends, in its order.
func (m *MadeUp) frame(device net.HardwareAddr) []byte {
	transport := m.tcp()
	protocol := byte(unix.IPPROTO_TCP)
	if m.UDP {
		transport, protocol = m.udp(), unix.IPPROTO_UDP
	}
	transport = append(transport, m.Payload...)
	frame := make([]byte, 6, 14+40+len(transport))
	copy(frame, device)
	frame = append(frame, 2, 0, 0, 0, 0, 0) // of nobody
	if client := m.Client.Addr(); client.Is4() {
		frame = append(frame, 0x08, 0x00, 0x45, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(20+len(transport)))
		frame = append(frame, 0, 0, 0x40, 0, 64, protocol, 0, 0) // Don't Fragment, TTL 64
	} else {
		frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(len(transport)))
		frame = append(frame, protocol, 64)
	}
	frame = append(frame, m.Client.Addr().AsSlice()...)
	frame = append(frame, m.VIP.Addr().AsSlice()...)
	frame = append(frame, transport...)
	wire.CompleteChecksum(frame[14:])
	return frame
}

func (m *MadeUp) ports() []byte {
	header := binary.BigEndian.AppendUint16(make([]byte, 0, 60), m.Client.Port())
	return binary.BigEndian.AppendUint16(header, m.VIP.Port())
}

func (m *MadeUp) udp() []byte {
	return append(binary.BigEndian.AppendUint16(m.ports(), uint16(8+len(m.Payload))), 0, 0)
}

func (m *MadeUp) tcp() []byte {
	var options []byte
	timestamps := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{8, 10}, m.Timestamp), m.Echo)
	switch {
	case m.Flags&model.TCPSyn != 0 && m.Timestamps:
		options = append([]byte{2, 4, 5, 0xb4, 4, 2}, append(timestamps, 1, 3, 3, 7)...) // MSS 1460, SACK permitted, window scale 7
	case m.Flags&model.TCPSyn != 0:
		options = []byte{2, 4, 5, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7}
	case m.Timestamps:
		options = append([]byte{1, 1}, timestamps...)
	}
	header := binary.BigEndian.AppendUint32(m.ports(), 1) // sequence number
	acknowledged := uint32(0)
	if m.Flags&model.TCPAck != 0 {
		acknowledged = 1
	}
	header = binary.BigEndian.AppendUint32(header, acknowledged)
	header = append(header, byte(5+len(options)/4)<<4, m.Flags, 0xff, 0xff, 0, 0, 0, 0)
	return append(header, options...)
}

// keyedOf are entries of the packet's connection in dryKeyed: with any VIP, as the program alone says which service the packet is for.
func (lb *LB) keyedOf(m *MadeUp) (map[string]map[lbConnectionKey][]byte, error) {
	key := lbConnectionKey{Client: wire.Words(m.Client.Addr()), ClientPort: wire.Port(m.Client.Port()), ServicePort: wire.Port(m.VIP.Port())}
	vips := map[uint32]bool{}
	for _, row := range lb.tables.serviceRows {
		if row.value != 0 {
			vips[lb.tables.services[row.value].VIPNumber] = true
		}
	}
	found := map[string]map[lbConnectionKey][]byte{}
	for _, name := range dryKeyed {
		found[name] = map[lbConnectionKey][]byte{}
		for vip := range vips {
			key.Service = vip
			value, err := lb.objects.all[name].LookupBytes(key)
			if err != nil {
				return nil, err
			}
			if value != nil {
				found[name][key] = value
			}
		}
	}
	return found, nil
}
