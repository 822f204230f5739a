// Whose a name is, and which addresses a node speaks for.
package enrolment

import (
	"net/netip"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// controllers are those that are known, by name, with their addresses.
func (e *Enrolment) controllers(now *documents.Snapshot) map[string][]netip.Addr {
	own := e.o.Credentials.Identity()
	known := map[string][]netip.Addr{own.Name: slices.Clone(own.Addresses)}
	reached := func(name, address string) {
		if at, err := netip.ParseAddrPort(address); err == nil {
			known[name] = append(known[name], at.Addr().Unmap())
		}
	}
	reached(own.Name, e.o.Address)
	for _, m := range e.o.Live() {
		known[m.Name] = append(known[m.Name], m.Addresses...)
		reached(m.Name, m.Address)
	}
	for _, m := range now.Controllers.Members {
		if _, listed := known[m.Name]; !listed {
			known[m.Name] = nil
		}
	}
	return known
}

// checkName refuses a name that is another's. The first that joins by a name has it until its certificate has ended or is revoked.
func (e *Enrolment) checkName(now *documents.Snapshot, at time.Time, wanted *pki.Wanted, source netip.Addr, i *documents.Invitation) error {
	name := wanted.Name
	if _, taken := e.controllers(now)[name]; taken {
		return refuse(connect.CodeAlreadyExists, "%s is the name of a controller: choose another with --name", name)
	}
	if before := now.Enrolled[name]; before != nil {
		key, err := pki.KeyID(wanted.Key)
		if err == nil && e.lives(before, at) && (before.Key != key || before.Role != wanted.Role) {
			return refuse(connect.CodeAlreadyExists, "%s is the name of %s %s, which joined from %s at %s and has a certificate until %s: choose another with --name, or, if that is gone, `ballast ctl pki revoke %s`",
				name, before.Role, name, before.From, before.At.Format(time.RFC3339), before.Ends.Format(time.RFC3339), name)
		}
	} else {
		nodes, err := e.o.Nodes()
		if err != nil {
			return connect.NewError(connect.CodeUnavailable, err)
		}
		for _, n := range nodes {
			if n.Name == name && (n.Since != nil || n.Ready == hub.ReadyLost) { // it is connected, or was: not only named in the configuration
				return refuse(connect.CodeAlreadyExists, "%s is the name of %s %s at %s, whose certificate was issued by hand: choose another with --name, or, if it is to join by a token, stop it and `ballast ctl pki revoke %s`, then `ballast ctl node forget %s`",
					name, n.Role, name, n.Address, name, name)
			}
		}
	}
	if i.Name != "" {
		return nil
	}
	return configured(now, name, wanted.Role, append(slices.Clone(i.Addresses), source))
}

// configured refuses a name of the fleet's configuration to who has a token for any name: a load balancer's, and that of a server that is not
// known by an address.
func configured(now *documents.Snapshot, name string, role pki.Role, addresses []netip.Addr) error {
	if slices.ContainsFunc(now.Nodes.Nodes, func(n model.Node) bool { return n.Name == name }) {
		return refuse(connect.CodePermissionDenied, "%s is a load balancer of the configuration, and this token is for any name: `ballast ctl node invite lb --name %s` makes one for it", name, name)
	}
	elsewhere := ""
	for service, d := range now.Services {
		for i := range d.Service.Servers {
			s := &d.Service.Servers[i]
			switch {
			case s.Name != name:
			case role == pki.Agent && slices.Contains(addresses, s.Address.Unmap()):
				return nil
			case elsewhere == "" || service < elsewhere:
				elsewhere = service
			}
		}
	}
	if elsewhere == "" {
		return nil
	}
	if role != pki.Agent {
		return refuse(connect.CodePermissionDenied, "%s is a server of service %s, whose agent has its name: choose another with --name", name, elsewhere)
	}
	return refuse(connect.CodePermissionDenied, "%s is a server of service %s at another address than this agent's: if it is the same machine, invite it with --name %s", name, elsewhere, name)
}

// addressesOf are those that a node speaks for: the one that it joins from, and those that the invitation names.
func (e *Enrolment) addressesOf(now *documents.Snapshot, at time.Time, wanted *pki.Wanted, source netip.Addr, i *documents.Invitation) ([]netip.Addr, error) {
	addresses := slices.Clone(i.Addresses)
	if ofHost(source) && !slices.Contains(addresses, source) {
		addresses = append(addresses, source)
	}
	if named, err := netip.ParseAddr(wanted.Name); err == nil && !slices.Contains(addresses, named.Unmap()) {
		return nil, refuse(connect.CodePermissionDenied, "the name %s is an address that is not this machine's, as far as is known: invite it with --address %s", named, named)
	}
	for _, address := range wanted.Addresses {
		if !slices.Contains(addresses, address.Unmap()) {
			return nil, refuse(connect.CodePermissionDenied, "%s is not the address that the request comes from (%s): invite it with --address %s", address, source, address)
		}
	}
	for _, dns := range wanted.DNS {
		if dns != wanted.Name {
			return nil, refuse(connect.CodePermissionDenied, "%s asks for a certificate of %s as well: it gets one of its own name alone", wanted.Name, dns)
		}
	}
	controllers := e.controllers(now)
	for _, address := range addresses {
		if slices.Contains(i.Addresses, address) {
			continue // somebody has said that it is this node's
		}
		for controller, theirs := range controllers {
			if slices.Contains(theirs, address) {
				return nil, refuse(connect.CodePermissionDenied, "%s is the address of controller %s: if both run on one machine, invite it with --address %s", address, controller, address)
			}
		}
	}
	for name, node := range now.Enrolled {
		if name == wanted.Name || node.Role != wanted.Role {
			continue
		}
		for _, address := range addresses {
			if slices.Contains(node.Addresses, address) && e.lives(node, at) { // last: it reads certificates
				return nil, refuse(connect.CodeAlreadyExists, "%s is the address of %s %s, which joined from %s at %s: if that is gone, `ballast ctl pki revoke %s`; behind a translator of addresses, join from inside",
					address, node.Role, name, node.From, node.At.Format(time.RFC3339), name)
			}
		}
	}
	return addresses, nil
}

// sameAddresses compares two lists, whatever their order.
func sameAddresses(a, b []netip.Addr) bool {
	sorted := func(list []netip.Addr) []netip.Addr {
		return slices.SortedFunc(slices.Values(list), netip.Addr.Compare)
	}
	return slices.Equal(sorted(a), sorted(b))
}
