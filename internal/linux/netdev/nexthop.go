// Package netdev asks the kernel how to reach an address, and tells when the answer changes.
//
// The data path never looks up routes: user space keeps each server's next hop in its map entry.
package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
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

// Unresolved is ErrUnresolved of a neighbour: the gateway of the route, or without one the destination itself.
type Unresolved struct{ Neighbour netip.Addr }

func (u *Unresolved) Error() string { return fmt.Sprintf("%s: %s", u.Neighbour, ErrUnresolved) }

func (u *Unresolved) Unwrap() error { return ErrUnresolved }

// Resolver looks up next hops in the calling thread's network namespace. Devices and neighbours are those of its first look at
// them: make one for each round of questions.
type Resolver struct {
	links      map[int]netlink.Link
	neighbours map[neighbourTable]map[netip.Addr]netlink.Neigh
}

type neighbourTable struct{ ifindex, family int }

// NewResolver returns a resolver that has not looked at anything yet.
func NewResolver() *Resolver {
	return &Resolver{map[int]netlink.Link{}, map[neighbourTable]map[netip.Addr]netlink.Neigh{}}
}

// Lookup returns the next hop towards address from the FIB and the neighbour table.
func (r *Resolver) Lookup(address netip.Addr) (NextHop, error) {
	routes, err := netlink.RouteGet(address.AsSlice())
	if err != nil || len(routes) == 0 {
		return NextHop{}, fmt.Errorf("look up route to %s: %w: add a route", address, err)
	}
	route := routes[0]
	link, err := r.link(route.LinkIndex)
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
	gateway := address
	if via, ok := route.Via.(*netlink.Via); ok { // IPv4 by way of an IPv6 neighbour
		gateway, _ = netip.AddrFromSlice(via.Addr)
	} else if route.Gw != nil {
		gateway, _ = netip.AddrFromSlice(route.Gw)
	}
	hop.Destination, err = r.neighbour(route.LinkIndex, gateway.Unmap())
	return hop, err
}

func (r *Resolver) link(ifindex int) (netlink.Link, error) {
	if known, ok := r.links[ifindex]; ok {
		return known, nil
	}
	link, err := netlink.LinkByIndex(ifindex)
	if err == nil {
		r.links[ifindex] = link
	}
	return link, err
}

// Usable neighbour states: the kernel itself would send to these without waiting.
const usable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT | netlink.NUD_NOARP

func (r *Resolver) neighbour(ifindex int, address netip.Addr) (mac [6]byte, err error) {
	table := neighbourTable{ifindex, netlink.FAMILY_V6}
	if address.Is4() {
		table.family = netlink.FAMILY_V4
	}
	known, ok := r.neighbours[table]
	if !ok {
		if known, err = listNeighbours(table); err != nil {
			return mac, err
		}
		r.neighbours[table] = known
	}
	n, ok := known[address]
	if !ok {
		use(table, address)
		return mac, &Unresolved{address}
	}
	copy(mac[:], n.HardwareAddr)
	if n.State&(netlink.NUD_STALE|netlink.NUD_DELAY) != 0 {
		use(table, address) // keeps the entry from ageing away: our packets do not touch it
	}
	return mac, nil
}

// listNeighbours returns those that can be sent to.
func listNeighbours(table neighbourTable) (map[netip.Addr]netlink.Neigh, error) {
	list, err := netlink.NeighList(table.ifindex, table.family)
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	out := make(map[netip.Addr]netlink.Neigh, len(list))
	for _, n := range list {
		if address, ok := netip.AddrFromSlice(n.IP); ok && len(n.HardwareAddr) == 6 && n.State&usable != 0 {
			out[address.Unmap()] = n
		}
	}
	return out, nil
}

// use makes the kernel resolve or confirm a neighbour as if it had a packet for it ("ip neigh ... use").
// Its outcome arrives as a neighbour update, so an error here needs no answer.
func use(table neighbourTable, address netip.Addr) {
	_ = netlink.NeighSet(&netlink.Neigh{LinkIndex: table.ifindex, Family: table.family, IP: address.AsSlice(), Flags: netlink.NTF_USE})
}

// Gateway is the router that the route to an address leads through; the zero Addr: none, it is on a link of this host.
func Gateway(address netip.Addr) netip.Addr {
	routes, err := netlink.RouteGet(address.AsSlice())
	if err != nil || len(routes) == 0 {
		return netip.Addr{}
	}
	gateway, _ := netip.AddrFromSlice(routes[0].Gw)
	return gateway.Unmap()
}
