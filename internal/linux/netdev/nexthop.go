// Package netdev asks the kernel how to reach an address, and tells when the answer changes.
//
// The data path never looks up routes: user space keeps each server's next hop in its map entry.
package netdev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NextHop is how a frame leaves this host towards an address.
type NextHop struct {
	Ifindex     int        // of the device that transmits: below a VLAN device, its parent
	VLAN        uint16     // 802.1Q id, 0: untagged
	Source      netip.Addr // address of this host towards it
	SourceMAC   [6]byte
	Destination [6]byte // MAC of the neighbour
	MTU         uint16  // of the route or, if it has none, of the device; headers of ours included
}

// ErrUnresolved says that the route is known and the neighbour's MAC is not (yet); the kernel has been asked to resolve it.
var ErrUnresolved = errors.New("neighbour not resolved yet")

// Lookup returns the next hop towards address from the FIB and neighbour table of the calling thread's network namespace.
func Lookup(address netip.Addr) (NextHop, error) {
	routes, err := netlink.RouteGet(address.AsSlice())
	if err != nil || len(routes) == 0 {
		return NextHop{}, fmt.Errorf("look up route to %s: %w: add a route", address, err)
	}
	route := routes[0]
	link, err := netlink.LinkByIndex(route.LinkIndex)
	if err != nil {
		return NextHop{}, fmt.Errorf("look up device of route to %s: %w", address, err)
	}
	if link.Attrs().Flags&net.FlagLoopback != 0 {
		return NextHop{}, fmt.Errorf("look up route to %s: the address is this host's own", address)
	}
	hop := NextHop{Ifindex: link.Attrs().Index, MTU: uint16(min(link.Attrs().MTU, 65535))}
	if route.MTU > 0 {
		hop.MTU = uint16(min(route.MTU, 65535))
	}
	copy(hop.SourceMAC[:], link.Attrs().HardwareAddr)
	if source, ok := netip.AddrFromSlice(route.Src); ok {
		hop.Source = source.Unmap()
	}
	if vlan, ok := link.(*netlink.Vlan); ok {
		hop.VLAN, hop.Ifindex = uint16(vlan.VlanId), vlan.ParentIndex
	}
	gateway := net.IP(address.AsSlice())
	if route.Gw != nil {
		gateway = route.Gw
	}
	hop.Destination, err = neighbour(route.LinkIndex, gateway)
	return hop, err
}

// Usable neighbour states: the kernel itself would send to these without waiting.
const usable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT | netlink.NUD_NOARP

func neighbour(ifindex int, address net.IP) ([6]byte, error) {
	family := netlink.FAMILY_V6
	if address.To4() != nil {
		family = netlink.FAMILY_V4
	}
	var mac [6]byte
	neighbours, err := netlink.NeighList(ifindex, family)
	if err != nil {
		return mac, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range neighbours {
		if !n.IP.Equal(address) || len(n.HardwareAddr) != 6 || n.State&usable == 0 {
			continue
		}
		copy(mac[:], n.HardwareAddr)
		if n.State&(netlink.NUD_STALE|netlink.NUD_DELAY) != 0 {
			use(ifindex, family, address) // keeps the entry from ageing away: our packets do not touch it
		}
		return mac, nil
	}
	use(ifindex, family, address)
	return mac, fmt.Errorf("%s: %w", address, ErrUnresolved)
}

// use makes the kernel resolve or confirm a neighbour as if it had a packet for it ("ip neigh ... use").
// Its outcome arrives as a neighbour update, so an error here needs no answer.
func use(ifindex, family int, address net.IP) {
	_ = netlink.NeighSet(&netlink.Neigh{LinkIndex: ifindex, Family: family, IP: address, Flags: netlink.NTF_USE})
}

// How long Watch collects changes before it reports them, and how often it reports without any: neighbours need
// confirmation, and a lost netlink message must not stay lost.
const (
	settle  = 20 * time.Millisecond
	refresh = 5 * time.Second
)

// Watch calls changed after each change of routes, neighbours, links or addresses in the calling thread's network namespace, and
// from time to time without, until ctx ends. changed runs on one goroutine.
func Watch(ctx context.Context, changed func()) error {
	done := make(chan struct{})
	routes, neighbours := make(chan netlink.RouteUpdate, 256), make(chan netlink.NeighUpdate, 256)
	links, addresses := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64)
	err := errors.Join(netlink.RouteSubscribe(routes, done), netlink.NeighSubscribe(neighbours, done),
		netlink.LinkSubscribe(links, done), netlink.AddrSubscribe(addresses, done))
	if err != nil {
		close(done)
		return fmt.Errorf("subscribe to network changes: %w", err)
	}
	go func() {
		defer close(done)
		timer := time.NewTimer(refresh)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
				timer.Reset(refresh)
				changed()
				continue
			case _, ok := <-routes:
				routes = stillOpen(routes, ok)
			case u, ok := <-neighbours:
				neighbours = stillOpen(neighbours, ok)
				if ok && u.Type != unix.RTM_DELNEIGH && u.State&usable == 0 && u.State&netlink.NUD_FAILED == 0 {
					continue // on its way to being resolved
				}
			case _, ok := <-links:
				links = stillOpen(links, ok)
			case _, ok := <-addresses:
				addresses = stillOpen(addresses, ok)
			}
			timer.Reset(settle)
		}
	}()
	return nil
}

// stillOpen replaces a channel that its sender closed by one that never delivers: the periodic refresh goes on.
func stillOpen[T any](c chan T, ok bool) chan T {
	if ok {
		return c
	}
	return nil
}
