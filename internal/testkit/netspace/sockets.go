package netspace

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A TCPSocket is an established connection over IPv4, as the namespace's TCP sees it.
type TCPSocket struct {
	Local, Remote netip.AddrPort
	Received      uint64 // bytes of payload
	SegmentsIn    uint32 // with the SYN
	Retransmitted uint32 // segments
}

// Established lists the established connections of the namespace over IPv4.
func (s *Space) Established() ([]TCPSocket, error) {
	var found []TCPSocket
	err := s.Do(func() error {
		all, err := netlink.SocketDiagTCPInfo(unix.AF_INET)
		for _, one := range all {
			if one.InetDiagMsg.State != netlink.TCP_ESTABLISHED {
				continue
			}
			socket := TCPSocket{Local: endpoint(one.InetDiagMsg.ID.Source, one.InetDiagMsg.ID.SourcePort),
				Remote: endpoint(one.InetDiagMsg.ID.Destination, one.InetDiagMsg.ID.DestinationPort)}
			if info := one.TCPInfo; info != nil {
				socket.Received, socket.SegmentsIn, socket.Retransmitted = info.Bytes_received, info.Segs_in, info.Total_retrans
			}
			found = append(found, socket)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list connections of %s: %w", s.Name, err)
	}
	return found, nil
}

func endpoint(address net.IP, port uint16) netip.AddrPort {
	parsed, _ := netip.AddrFromSlice(address)
	return netip.AddrPortFrom(parsed.Unmap(), port)
}
