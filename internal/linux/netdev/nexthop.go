// Package netdev asks the kernel how to reach an address, and tells when the answer changes.
//
// The data path never looks up routes: user space keeps each server's next hop in its map entry.
package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

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
	OnLink      bool    // Destination is of the address itself, and not of a router
}

// ErrOwn says that an address is one of this host.
var ErrOwn = errors.New("the address is this host's own")

// ErrUnresolved says that the route is known and the neighbour's MAC is not (yet); the kernel has been asked to resolve it.
var ErrUnresolved = errors.New("neighbour not resolved yet")

// ErrNeighboursFull says that the kernel has no room for another neighbour.
var ErrNeighboursFull = errors.New("the kernel's neighbour table is full")

// Unresolved is ErrUnresolved of a neighbour: the gateway of the route, or without one the destination itself.
type Unresolved struct {
	Neighbour netip.Addr
	Full      bool // it is ErrNeighboursFull, too
	Failed    bool // it was asked and did not answer; else the answer may still come
}

func (u *Unresolved) Error() string {
	text := fmt.Sprintf("%s: %s", u.Neighbour, ErrUnresolved)
	if u.Full {
		text += fmt.Sprintf(": %s: raise %s", ErrNeighboursFull, NeighbourLimit(u.Neighbour))
	}
	return text
}

func (u *Unresolved) Unwrap() []error {
	if u.Full {
		return []error{ErrUnresolved, ErrNeighboursFull}
	}
	return []error{ErrUnresolved}
}

// NeighbourLimit is the sysctl that bounds the neighbours of an address's family.
func NeighbourLimit(address netip.Addr) string {
	if address.Is4() {
		return "net.ipv4.neigh.default.gc_thresh3"
	}
	return "net.ipv6.neigh.default.gc_thresh3"
}

// Resolver looks up next hops in the calling thread's network namespace. Routes, devices and neighbours are those of its first look at
// them: make one for each round of questions.
type Resolver struct {
	routes     *Routes
	links      map[int]netlink.Link
	addresses  map[int][]netlink.Addr // IPv6, by device
	neighbours map[neighbourTable]map[netip.Addr]neighbour
	hops       map[neighbourKey]hop // neighbours that have been asked for
	kept       *Kept                // nil: neighbours are resolved, and may be forgotten again
}

// hop is what became of a neighbour that was asked for.
type hop struct {
	mac [6]byte
	err error
}

// NewResolver returns a resolver that has not looked at anything yet.
func NewResolver() *Resolver { return NewResolverBy(&Routes{}) }

// NewResolverBy is a resolver that goes by routes, and adds those that it asks for.
func NewResolverBy(routes *Routes) *Resolver {
	return &Resolver{routes: routes, links: map[int]netlink.Link{}, addresses: map[int][]netlink.Addr{},
		neighbours: map[neighbourTable]map[netip.Addr]neighbour{}, hops: map[neighbourKey]hop{}}
}

// Lookup returns the next hop towards address from the FIB and the neighbour table.
func (r *Resolver) Lookup(address netip.Addr) (NextHop, error) {
	hop, neighbour, err := r.route(address)
	if err == nil {
		hop.Destination, err = r.neighbour(neighbour)
	}
	return hop, err
}

// route returns the next hop without its MAC, and its neighbour.
func (r *Resolver) route(address netip.Addr) (hop NextHop, neighbour neighbourKey, err error) {
	route, err := r.routes.get(address)
	if err != nil {
		return hop, neighbour, fmt.Errorf("look up route to %s: %w: add a route", address, err)
	}
	if route.kind == unix.RTN_LOCAL {
		return hop, neighbour, fmt.Errorf("look up route to %s: %w", address, ErrOwn)
	}
	link, err := r.link(route.ifindex)
	if err != nil {
		return hop, neighbour, fmt.Errorf("look up device of route to %s: %w", address, err)
	}
	if link.Attrs().Flags&net.FlagLoopback != 0 {
		return hop, neighbour, fmt.Errorf("look up route to %s: it leads to this host itself", address)
	}
	hop = NextHop{Ifindex: link.Attrs().Index, MTU: uint16(min(link.Attrs().MTU, 65535))}
	if route.mtu > 0 {
		hop.MTU = uint16(min(route.mtu, 65535))
	}
	copy(hop.SourceMAC[:], link.Attrs().HardwareAddr)
	if route.source.IsValid() {
		hop.Source = r.lasting(link, route.source)
	}
	if vlan, ok := link.(*netlink.Vlan); ok {
		hop.VLAN, hop.Ifindex = uint16(vlan.VlanId), vlan.ParentIndex
	}
	gateway := route.gateway
	if hop.OnLink = !gateway.IsValid() || gateway == address; hop.OnLink {
		gateway = address
	}
	return hop, neighbourOf(route.ifindex, gateway), nil
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

// lasting returns the device's address with the same prefix in place of a temporary one (RFC 8981), which the kernel prefers where
// use_tempaddr is 2 and which is another one tomorrow: servers know load balancers by their addresses.
func (r *Resolver) lasting(link netlink.Link, source netip.Addr) netip.Addr {
	if source.Is4() {
		return source
	}
	index := link.Attrs().Index
	list, known := r.addresses[index]
	if !known {
		list, _ = netlink.AddrList(link, netlink.FAMILY_V6) // without it the kernel's choice stands
		r.addresses[index] = list
	}
	temporary := slices.IndexFunc(list, func(a netlink.Addr) bool {
		return a.Flags&unix.IFA_F_TEMPORARY != 0 && a.IP.Equal(source.AsSlice())
	})
	if temporary < 0 {
		return source
	}
	const unfit = unix.IFA_F_TEMPORARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	lasting := slices.IndexFunc(list, func(a netlink.Addr) bool {
		return a.Flags&unfit == 0 && a.Scope == list[temporary].Scope && a.Contains(source.AsSlice())
	})
	if lasting < 0 {
		return source
	}
	address, _ := netip.AddrFromSlice(list[lasting].IP)
	return address
}

// neighbour returns the MAC of a neighbour. The kernel is asked to resolve it, or to keep it, once.
func (r *Resolver) neighbour(key neighbourKey) (mac [6]byte, err error) {
	known, ok := r.hops[key]
	if !ok {
		known.mac, known.err = r.use(key)
		r.hops[key] = known
	}
	return known.mac, known.err
}

func (r *Resolver) use(key neighbourKey) (mac [6]byte, err error) {
	n, err := r.entry(key)
	if err != nil {
		return mac, err
	}
	if r.kept != nil {
		err = r.kept.keep(key, n)
	} else if !n.kept() && (!n.usable() || n.State&(netlink.NUD_STALE|netlink.NUD_DELAY) != 0) {
		err = resolve(key) // also so that it does not age away: our packets do not touch it
	}
	if !n.usable() {
		return mac, &Unresolved{Neighbour: key.address, Full: errors.Is(err, unix.ENOBUFS), Failed: err != nil || n.State&netlink.NUD_FAILED != 0}
	}
	copy(mac[:], n.HardwareAddr)
	return mac, nil
}

// entry is what the kernel's table had of a neighbour when its device was first looked at.
func (r *Resolver) entry(key neighbourKey) (neighbour, error) {
	known, ok := r.neighbours[key.table]
	if !ok {
		var err error
		if known, err = listNeighbours(key.table); err != nil {
			return neighbour{}, err
		}
		r.neighbours[key.table] = known
	}
	return known[key.address], nil
}

// Gateway is the router that the route to an address leads through; the zero Addr: none, it is on a link of this host.
func Gateway(address netip.Addr) netip.Addr {
	route, _ := new(Routes).get(address)
	return route.gateway
}
