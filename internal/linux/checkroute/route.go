// How checks leave this host and come back.
package checkroute

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// checkRoutes finds out how checks leave this host and come back, in the calling thread's network namespace. What it has looked up
// stays as it was: make one for each Set.
type checkRoutes struct {
	resolver *netdev.Resolver
	vips     map[netip.Addr]vipRoute
	devices  map[returnDevice]netlink.Link
	links    []netlink.Link
}

// vipRoute is where packets to a VIP go without us.
type vipRoute struct {
	whyNot  string // why they cannot be made use of
	devices []int
}

// returnDevice is a device as plan.Path names it.
type returnDevice struct {
	ifindex uint32
	vlan    uint16
}

func newCheckRoutes() *checkRoutes {
	return &checkRoutes{resolver: netdev.NewResolver(), vips: map[netip.Addr]vipRoute{}, devices: map[returnDevice]netlink.Link{}}
}

// prepare works out how to dial a target.
func (r *checkRoutes) prepare(t *Target) checkTarget {
	made := checkTarget{server: t.Server, owns: t.Owns, placed: t.Placed, ports: t.Ports, tunnel: t.Forward != model.ForwardL2}
	made.direct = checkCheckPath{To: wire.Words(t.Server), Vip: wire.Words(t.Server), Ifindex: t.Path.Ifindex, Service: t.Number, Id: t.ID, ByXdp: checkByXDPDirect}
	if t.Absent {
		made.direct.Ifindex = 0
	}
	switch {
	case !t.VIP.IsValid():
		made.whyNot = "its own address is all there is"
	case t.Forward == model.ForwardNAT:
		made.whyNot = "forward: nat leads to the server's own address anyway"
	case t.Return == model.ReturnThrough:
		made.whyNot = "with return: through the server's answer would have to pass the load balancer"
	}
	if made.whyNot != "" || !t.Path.Known() {
		return made
	}
	if t.Path.Here {
		r.prepareHere(t, &made)
		return made
	}
	back := r.device(t.Path)
	r.choose(t, &made, back)
	if made.whyNot != "" {
		return made
	}
	made.source = sourceFor(t.VIP, t.Path, back)
	made.path = checkCheckPath{
		To: wire.Words(made.to), Vip: wire.Words(t.VIP), Address: wire.Words(t.Server), Source: wire.Words(t.Path.Source), DestinationMac: t.Path.DestinationMAC,
		SourceMac: t.Path.SourceMAC, Ifindex: t.Path.Ifindex, Vlan: t.Path.VLAN, Forward: uint8(t.Forward),
		Service: t.Number, Id: t.ID,
	}
	if t.Server.Is6() {
		made.path.OuterIpv6 = 1
	}
	made.mss = segmentSize(t)
	return made
}

// choose finds the address that a target's sockets are connected to: the VIP, if this host has a way out to it; else the server's, which the VIP
// takes the place of on the way.
func (r *checkRoutes) choose(t *Target, made *checkTarget, back netlink.Link) {
	toVIP := r.vip(t.VIP)
	why := toVIP.whyNot
	if why == "" {
		why = r.answersWouldBeDropped(t.VIP, back)
	}
	if why == "" {
		made.to, made.devices = t.VIP, toVIP.devices
		return
	}
	toServer := r.vip(t.Server)
	if t.VIP.Is4() != t.Server.Is4() || back == nil || toServer.whyNot != "" {
		made.whyNot = why
		return
	}
	made.to, made.devices = t.Server, toServer.devices
	made.back = append(slices.Clone(toServer.devices), back.Attrs().Index) // answers may come by any
}

// prepareHere is for a server on this host. Its packets go by loopback, where no agent marks them.
func (r *checkRoutes) prepareHere(t *Target, made *checkTarget) {
	loopback, err := net.InterfaceByName("lo")
	switch {
	case err != nil:
		made.whyNot = fmt.Sprintf("it is this host, and has no loopback device: %v", err)
		return
	case t.VIP.Is4() != t.Server.Is4():
		made.whyNot = "it is this host, and its address is of another family than the VIP"
		return
	}
	made.to, made.devices, made.back, made.owns, made.tunnel = t.Server, []int{loopback.Index}, []int{loopback.Index}, nil, false
	made.path = checkCheckPath{To: wire.Words(t.Server), Vip: wire.Words(t.VIP), Ifindex: uint32(loopback.Index), Forward: checkHere}
	made.mss = segmentSize(t)
}

// leavesBy are the devices that packets of a target's checks leave by and that the program must run on. byXDP: of those to the server's own address, too.
func (r *checkRoutes) leavesBy(made *checkTarget, byXDP bool) (devices []int) {
	if made.whyNot == "" {
		devices = slices.Clone(made.devices)
	}
	if byXDP && (made.whyNot != "" || made.ports != nil) { // other ports are checked there
		devices = append(devices, r.vip(made.server).devices...)
	}
	return devices
}

// vip looks up where packets to a VIP, or a server, leave this host.
func (r *checkRoutes) vip(vip netip.Addr) vipRoute {
	if known, ok := r.vips[vip]; ok {
		return known
	}
	found := r.lookUp(vip)
	r.vips[vip] = found
	return found
}

func (r *checkRoutes) lookUp(vip netip.Addr) (found vipRoute) {
	// A packet whose next hop is not resolved waits in the kernel and never comes by.
	if _, err := r.resolver.Lookup(vip); err != nil {
		found.whyNot = fmt.Sprintf("no way out to the VIP: %v", err)
		return found
	}
	routes, err := netlink.RouteGetWithOptions(vip.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 {
		found.whyNot = fmt.Sprintf("no way out to the VIP: look up its route: %v", err)
		return found
	}
	for _, route := range routes {
		if len(route.MultiPath) == 0 {
			found.devices = append(found.devices, route.LinkIndex)
		}
		for _, hop := range route.MultiPath {
			found.devices = append(found.devices, hop.LinkIndex)
		}
	}
	slices.Sort(found.devices)
	found.devices = slices.Compact(found.devices)
	for _, device := range found.devices {
		if l, err := netlink.LinkByIndex(device); err != nil || len(l.Attrs().HardwareAddr) != 6 {
			found.whyNot = fmt.Sprintf("the route to %s leads to device %d, which is no Ethernet", vip, device)
		}
	}
	return found
}

// device finds the device that the server's answers arrive by; nil: it is not known.
func (r *checkRoutes) device(path plan.Path) netlink.Link {
	wanted := returnDevice{path.Ifindex, path.VLAN}
	if known, ok := r.devices[wanted]; ok {
		return known
	}
	if r.links == nil {
		r.links, _ = netlink.LinkList()
	}
	for _, l := range r.links {
		vlan, tagged := l.(*netlink.Vlan)
		if path.VLAN == 0 && l.Attrs().Index == int(path.Ifindex) || tagged && path.VLAN != 0 && vlan.VlanId == int(path.VLAN) && vlan.ParentIndex == int(path.Ifindex) {
			r.devices[wanted] = l
			return l
		}
	}
	r.devices[wanted] = nil
	return nil
}

// answersWouldBeDropped tells whether this host's reverse path filter takes the VIP, on the device where the servers are, for forged.
func (r *checkRoutes) answersWouldBeDropped(vip netip.Addr, back netlink.Link) (why string) {
	const strict = "1"
	if !vip.Is4() || back == nil || slices.Contains(r.vip(vip).devices, back.Attrs().Index) {
		return ""
	}
	name := back.Attrs().Name
	all, device := reversePathFilter("all"), reversePathFilter(name)
	if all <= strict && device <= strict && (all == strict || device == strict) { // the larger of both counts
		return fmt.Sprintf("net.ipv4.conf.%s.rp_filter is 1 and would drop answers from the VIP there: 2 lets them in", name)
	}
	return ""
}

func reversePathFilter(device string) string {
	value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + device + "/rp_filter")
	if err != nil {
		return "0"
	}
	return strings.TrimSpace(string(value))
}

// sourceFor is the address of this host that servers know how to answer to: the tunnel's own or, if that is of another family than
// the VIP, one on the same device.
func sourceFor(vip netip.Addr, path plan.Path, back netlink.Link) netip.Addr {
	if path.Source.Is4() == vip.Is4() {
		return path.Source
	}
	if back == nil {
		return netip.Addr{}
	}
	family := netlink.FAMILY_V6
	if vip.Is4() {
		family = netlink.FAMILY_V4
	}
	addresses, err := netlink.AddrList(back, family)
	if err != nil {
		return netip.Addr{}
	}
	for _, address := range addresses {
		if a, ok := netip.AddrFromSlice(address.IP); ok && address.Scope == int(netlink.SCOPE_UNIVERSE) && a.Unmap() != vip {
			return a.Unmap()
		}
	}
	return netip.Addr{}
}

// segmentSize is the largest TCP segment that fits the path inside its outer headers.
func segmentSize(t *Target) int {
	const least, most = 88, 32767 // what TCP_MAXSEG takes
	header, outer := 40, 0
	if t.VIP.Is6() {
		header = 60
	}
	if t.Forward.Tunnels() {
		outer = 20
		if t.Server.Is6() {
			outer = 40
		}
	}
	if t.Forward == model.ForwardGUE {
		outer += 8 + 4
	}
	return min(max(int(t.Path.MTU)-outer-header, least), most)
}
