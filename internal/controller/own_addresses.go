package controller

import (
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// checkVIPs refuses VIPs that are new to the fleet and addresses of its own: load balancers would take what controllers and nodes say to
// each other for a service's packets.
func (c *controller) checkVIPs(before map[netip.Addr]bool, fleet *model.Fleet) error {
	var owners map[netip.Addr]string
	for i := range fleet.Services {
		vip := fleet.Services[i].VIP
		if before[vip] {
			continue
		}
		if owners == nil {
			owners = c.ownAddresses()
		}
		if owner := owners[vip]; owner != "" {
			return &model.Invalid{Path: fmt.Sprintf("services[%d].vip", i), Remedy: "use an address that no machine of the fleet has",
				Problem: fmt.Sprintf("%s is the address of %s: load balancers would take its traffic for the service's", vip, owner)}
		}
	}
	return nil
}

func vipsOf(fleet *model.Fleet) map[netip.Addr]bool {
	vips := map[netip.Addr]bool{}
	for i := range fleet.Services {
		vips[fleet.Services[i].VIP] = true
	}
	return vips
}

// ownAddresses are those of controllers that live, as far as they or their certificates name them, and of nodes that are connected or lost: those
// that they join by, and hub.Nodes.OwnAddresses.
func (c *controller) ownAddresses() map[netip.Addr]string {
	owners := c.hub.Nodes.OwnAddresses()
	add := func(address, owner string) {
		if host, err := netip.ParseAddrPort(address); err == nil { // else it is a name
			owners[host.Addr().Unmap()] = owner
		}
	}
	c.mutex.Lock()
	for _, member := range c.live {
		add(member.Address, "controller "+member.Name)
		for _, address := range member.Addresses {
			owners[address] = "controller " + member.Name
		}
	}
	c.mutex.Unlock()
	for _, n := range append(c.hub.Nodes.List(), c.hub.Nodes.Lost()...) {
		owner := "agent " + n.Name
		if n.Role == string(pki.LB) {
			owner = "load balancer " + n.Name
		}
		add(n.Address, owner)
	}
	return owners
}
