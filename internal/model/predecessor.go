package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// MaxPredecessors is how many addresses a Predecessor has: PREDECESSORS_MAX of bpf/lb/state/service.h.
const MaxPredecessors = 8

// ShareAll is all of the new connections, per mille.
const ShareAll = 1000

// HereShare is how many of the new connections begin here. It is kept as what is missing to all of them: the zero value is all.
type HereShare uint16

// ShareOf is a share of so many per mille, up to ShareAll.
func ShareOf(permille uint16) HereShare { return HereShare(ShareAll - min(permille, ShareAll)) }

// ParseShare reads one. The error is *Invalid.
func ParseShare(text string) (HereShare, error) {
	permille, err := ParseNumber[uint16](text, 0, ShareAll)
	if err != nil {
		return 0, err
	}
	return ShareOf(permille), nil
}

// Permille is the share as people give it.
func (s HereShare) Permille() uint16 { return ShareAll - uint16(s) }

func (s HereShare) String() string { return strconv.Itoa(int(s.Permille())) }

// MarshalJSON writes it as people give it.
func (s HereShare) MarshalJSON() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalJSON reads what MarshalJSON has written.
func (s *HereShare) UnmarshalJSON(text []byte) error {
	share, err := ParseShare(string(text))
	if err == nil {
		*s = share
	}
	return err
}

// Predecessor is who had the VIPs of a service before, or shall have them: what is not of a connection that began here goes there. Without
// addresses there is none.
type Predecessor struct {
	Addresses []netip.Addr `json:"addresses,omitempty"` // several must find each other's connections
	Forward   Forward      `json:"forward,omitempty"`   // l2, ipip or gue
	Share     HereShare    `json:"share"`
}

// Exists reports whether there is one.
func (p *Predecessor) Exists() bool { return len(p.Addresses) > 0 }

// clone returns a copy that shares no memory with p.
func (p Predecessor) clone() Predecessor {
	p.Addresses = slices.Clone(p.Addresses)
	return p
}

// validatePredecessor refuses services whose connections cannot be told from those of others.
func (s *Service) validatePredecessor(path string, found *findings) {
	p := &s.Predecessor
	if !p.Exists() {
		if p.Share != 0 {
			found.add(path+".share", "name its addresses (predecessor.addresses), or remove share", "what does not begin here begins at a predecessor, and there is none")
		}
		return
	}
	if len(p.Addresses) > MaxPredecessors {
		found.add(path+".addresses", "name fewer", "%d addresses, at most %d fit", len(p.Addresses), MaxPredecessors)
	}
	if p.Forward != ForwardL2 && p.Forward != ForwardIPIP && p.Forward != ForwardGUE {
		found.add(path+".forward", "use l2, ipip or gue", "a predecessor takes packets as they are, or in a tunnel")
	}
	for i, address := range p.Addresses {
		s.validatePredecessorAddress(fmt.Sprintf("%s.addresses[%d]", path, i), i, address, found)
	}
	s.validateTellsApart(path, found)
}

func (s *Service) validatePredecessorAddress(at string, i int, address netip.Addr, found *findings) {
	checkAddress(at, address, found)
	switch {
	case slices.Contains(s.Predecessor.Addresses[:i], address):
		found.add(at, "remove it", "%s is listed twice", address)
	case s.HasVIP(address):
		found.add(at, "use an address of the host that has the vip besides", "%s is the vip, which leads here", address)
	case slices.ContainsFunc(s.Servers, func(server Server) bool { return server.Address == address }):
		found.add(at, "use another address of that host, or remove the server", "%s is one of the servers, which takes what comes as its own", address)
	case s.Predecessor.Forward != ForwardL2 && s.Affinity.Cookies() &&
		slices.ContainsFunc(s.Servers, func(server Server) bool { return server.Address.Is4() != address.Is4() }):
		found.add(at, "use an address of the servers' family, or predecessor.forward: l2", "servers put what is not theirs into the tunnel that it came by, and %s is %s", address, family(address))
	}
}

// validateSuccession refuses predecessors that are this fleet: their packets would come back. vips are those of all services, with a name of one.
func (f *Fleet) validateSuccession(path string, s *Service, vips map[netip.Addr]string, found *findings) {
	for i, address := range s.Predecessor.Addresses {
		at := fmt.Sprintf("%s.addresses[%d]", path, i)
		if name, taken := vips[address]; taken && !s.HasVIP(address) {
			found.add(at, "use the other load balancer's own address", "%s is the vip of service %s, which leads here", address, name)
		}
		for j := range f.Nodes {
			if f.Nodes[j].Address == address {
				found.add(at, "use an address of the other load balancer", "%s is node %s of this fleet, which would send packets back", address, f.Nodes[j].Name)
			}
		}
	}
}

// validateTellsApart refuses what leaves a packet's connection in doubt.
func (s *Service) validateTellsApart(path string, found *findings) {
	switch {
	case s.Protocol != ProtocolTCP && s.Affinity != AffinityLocal:
		found.add(path, "use affinity: local-table", "without a table nobody knows whose flow a datagram is of")
		return
	case s.Affinity != AffinityLocal && !s.Affinity.Cookies():
		found.add(path, "use affinity: cookie, table or local-table", "with affinity: %s nothing in a packet says where its connection began", s.Affinity)
		return
	case s.Fallback == FallbackReplicated:
		found.add(path, "use fallback: second-chance", "the replicated table takes what has no cookie as its own")
	case s.Dispatch == DispatchChoices:
		found.add(path, "use another dispatch policy", "with dispatch: choices servers hand connections on to each other")
	case s.Session != SessionNone || s.SYNProxy != SYNProxyOff:
		found.add(path, "use session: none and syn_proxy: off", "load balancers begin the connections, and would answer for the predecessor")
	}
	if !s.Affinity.Cookies() {
		return
	}
	if s.Return == ReturnThrough || !s.Forward.Tunnels() || s.Forward == ForwardSRv6 {
		found.add(path, "use return: direct, and forward: ipip or gue", "a timestamp of the predecessor may look like a cookie, and only agents see that: they need a tunnel to the server")
	}
}
