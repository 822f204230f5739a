// The device that tunnels come in by.
package programs

import (
	"net"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// Receiver is the device with the smallest MTU that tunnels come in by: it drops longer packets, and sends no error. nil: it is not known. It
// is one of names or, without, of those with the servers' addresses.
func Receiver(names []string, addresses []netip.Addr) *ballastv1.Receiver {
	if len(names) == 0 {
		names, _ = netdev.InterfacesOf(addresses)
	}
	var narrow *ballastv1.Receiver
	for _, name := range names {
		device, err := net.InterfaceByName(name)
		if err == nil && device.Flags&net.FlagLoopback == 0 && (narrow == nil || uint32(device.MTU) < narrow.Mtu) {
			narrow = &ballastv1.Receiver{Device: name, Mtu: uint32(device.MTU)}
		}
	}
	if routes, err := netdev.DefaultRoutes(); err == nil && narrow != nil {
		narrow.Segment, narrow.Segment6 = announced(routes, false), announced(routes, true)
	}
	return narrow
}

// announced is the largest TCP segment that default routes of a family announce; 0: one of them has none.
func announced(routes []netdev.DefaultRoute, ipv6 bool) (segment uint32) {
	for _, route := range routes {
		switch {
		case route.IPv6 != ipv6:
		case route.AdvMSS == 0:
			return 0
		default:
			segment = max(segment, uint32(route.AdvMSS))
		}
	}
	return segment
}
