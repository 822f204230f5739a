package netdev

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// RouteDevice returns the device that packets of this host to address leave by, in the calling thread's network namespace. An address of
// this host has none. ErrUnresolved, with the device: they wait for a neighbour that has not answered, and has been asked.
func RouteDevice(address netip.Addr) (*net.Interface, error) {
	r := NewResolver()
	route, err := r.routes.get(address)
	if err != nil {
		return nil, fmt.Errorf("look up route to %s: %w", address, err)
	}
	if route.kind != unix.RTN_UNICAST {
		return nil, fmt.Errorf("look up route to %s: it leads to no other host", address)
	}
	device, err := net.InterfaceByIndex(route.ifindex)
	if err != nil {
		return nil, fmt.Errorf("look up device of route to %s: %w", address, err)
	}
	_, neighbour, err := r.route(address)
	if err == nil && r.links[device.Index].Attrs().RawFlags&unix.IFF_NOARP == 0 {
		_, err = r.neighbour(neighbour)
	}
	return device, err
}
