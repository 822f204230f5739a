package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ballast-lb/ballast/internal/model"
)

// holder is who has an address.
type holder struct {
	of    *ours  // nil: another owner
	owner string // for people
}

// families are those that a Service needs, IPv4 being true; the first one is its main one. optional: the second may be missing.
func (m *mapping) families(s *ours) (need []bool, optional bool) {
	for _, f := range s.Spec.IPFamilies {
		need = append(need, f == corev1.IPv4Protocol)
	}
	if len(need) == 0 {
		four := slices.ContainsFunc(m.Pools, func(p Pool) bool { return newCursor(&p, true).next.IsValid() })
		need = []bool{four || len(m.Pools) == 0}
	}
	return need, s.Spec.IPFamilyPolicy == nil || *s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyRequireDualStack
}

// addressesHeld are those that a Service has already, and whether the fleet says so: a status can be written by others.
func (m *mapping) addressesHeld(s *ours) (held []netip.Addr, inFleet bool) {
	for _, before := range s.before {
		return before.VIPs(), true
	}
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(ingress.IP); err == nil && m.pool(a) != nil {
			held = append(held, a)
		}
	}
	return held, false
}

// allocate gives every Service its addresses. First come those that have some, the fleet's before others, then the older ones: nobody loses an
// address to another.
func (m *mapping) allocate() {
	m.taken, m.sharing = map[netip.Addr][]holder{}, map[string][]netip.Addr{}
	kept := map[string]bool{} // and nobody's any more
	for _, name := range m.out.Vanished {
		kept[name] = true
	}
	for _, s := range m.services {
		for _, before := range s.before {
			kept[before.Name] = false
		}
	}
	for i := range m.in.Fleet {
		s := &m.in.Fleet[i]
		if s.Owner == m.Owner && !kept[s.Name] {
			continue
		}
		for _, a := range s.VIPs() {
			m.taken[a] = append(m.taken[a], holder{owner: "service " + s.Name + " of the fleet"})
		}
	}
	m.findHosts()
	cursors := map[string][2]*cursor{}
	for i := range m.Pools {
		cursors[m.Pools[i].Name] = [2]*cursor{newCursor(&m.Pools[i], true), newCursor(&m.Pools[i], false)}
	}
	for _, s := range m.services {
		s.settings = m.read(s)
	}
	var without []*ours
	for _, s := range m.services { // what is held, before anything is given away
		if !m.keep(s) {
			without = append(without, s)
		}
	}
	for _, s := range without {
		m.give(s, cursors)
	}
}

// findHosts notes who has addresses of its own: nodes of the cluster, and servers, load balancers and routers of the fleet.
func (m *mapping) findHosts() {
	m.hosts = make(map[netip.Addr]string, len(m.in.Nodes))
	for _, n := range m.in.Nodes {
		for _, address := range n.Status.Addresses {
			if a, err := netip.ParseAddr(address.Address); err == nil {
				m.hosts[a] = "node " + n.Name
			}
		}
	}
	m.balancers = map[netip.Addr]string{}
	for i := range m.in.Balancers {
		n := &m.in.Balancers[i]
		m.balancers[n.Address] = "load balancer " + n.Name
		for j := range n.BGP.Neighbors {
			m.balancers[n.BGP.Neighbors[j].Address] = "a BGP neighbor of load balancer " + n.Name
		}
	}
	maps.Copy(m.hosts, m.balancers)
	for i := range m.in.Fleet {
		s := &m.in.Fleet[i]
		for j := range s.Servers {
			if server := &s.Servers[j]; m.hosts[server.Address] == "" {
				m.hosts[server.Address] = "server " + server.Name + " of service " + s.Name
			}
		}
		for _, a := range s.Predecessor.Addresses {
			if m.hosts[a] == "" {
				m.hosts[a] = "the predecessor of service " + s.Name
			}
		}
	}
}

// keep has a Service keep the addresses that it has, if they are as it wants them, and reports whether nothing is missing.
func (m *mapping) keep(s *ours) bool {
	requested := s.settings.addresses
	if !s.settings.valid || len(requested) > 0 { // one that is invalid goes on as it was
		for _, a := range s.held {
			if m.whyNot(s, a) == "" && (!s.settings.valid || slices.Contains(requested, a)) {
				m.take(s, a)
			}
		}
		return !s.settings.valid || slices.Equal(s.vips, requested)
	}
	need, _ := m.families(s)
	for _, four := range need {
		for _, a := range s.held {
			wanted := s.settings.pool == "" || m.isOf(a, s.settings.pool) || s.inFleet && m.pool(a) == nil
			if a.Is4() == four && wanted && m.whyNot(s, a) == "" {
				m.take(s, a)
				break
			}
		}
	}
	return len(s.vips) == len(need)
}

func (m *mapping) isOf(a netip.Addr, pool string) bool {
	p := m.pool(a)
	return p != nil && p.Name == pool
}

// mayUse reports whether a Service gets addresses of a pool without naming them.
func (m *mapping) mayUse(s *ours, p *Pool) bool {
	if s.settings.pool != "" {
		return p.Name == s.settings.pool
	}
	return !p.ByRequest
}

func (m *mapping) take(s *ours, a netip.Addr) {
	s.vips = append(s.vips, a)
	if key := s.settings.sharing; key != "" && !slices.Contains(m.sharing[key], a) {
		m.sharing[key] = append(m.sharing[key], a)
	}
	m.taken[a] = append(m.taken[a], holder{of: s, owner: s.kind() + " " + s.key.String()})
}

// has reports whether a Service has an address in the fleet.
func (s *ours) has(a netip.Addr) bool { return s.inFleet && slices.Contains(s.held, a) }

// whyNot says why a Service cannot have an address; empty: it can. Services of one namespace share addresses: a port at an address is a name's, too, for
// who issues certificates by HTTP. Those of several that share one already go on.
func (m *mapping) whyNot(s *ours, a netip.Addr) string {
	for _, h := range m.taken[a] {
		switch {
		case h.of == s:
		case h.of == nil:
			return fmt.Sprintf("%s is an address of %s", a, h.owner)
		case s.Namespace != h.of.Namespace && !(s.has(a) && h.of.has(a)):
			return fmt.Sprintf("%s is the address of %s, and none of another namespace shares it", a, h.owner)
		case s.settings.sharing == "" || h.of.settings.sharing != s.settings.sharing:
			return fmt.Sprintf("%s is the address of %s, and the two have no %s in common", a, h.owner, AnnotationPrefix+sharingKey)
		default:
			if port, found := s.collision(h.of); found {
				return fmt.Sprintf("%s is the address of %s, which has port %d/%s, too", a, h.owner, port.number, port.protocol)
			}
		}
	}
	if host := m.hosts[a]; host != "" && !s.has(a) { // what a Service has, no node takes from it
		return fmt.Sprintf("%s is the address of %s", a, host)
	}
	return ""
}

// portKey is one that a Service has.
type portKey struct {
	number   int32
	protocol model.Protocol
}

// collision is a port that two Services have. It takes as long as one of them has ports: there may be thousands, and many that share an address.
func (s *ours) collision(other *ours) (common portKey, found bool) {
	for _, one := range []*ours{s, other} {
		if one.ports == nil {
			one.ports = make(map[portKey]bool, len(one.Spec.Ports))
			for i := range one.Spec.Ports {
				one.ports[portKey{one.Spec.Ports[i].Port, protocolOf(&one.Spec.Ports[i])}] = true
			}
		}
	}
	for i := range s.Spec.Ports {
		if common = (portKey{s.Spec.Ports[i].Port, protocolOf(&s.Spec.Ports[i])}); other.ports[common] {
			return common, true
		}
	}
	return portKey{}, false
}

// give gives a Service what it lacks: the addresses that it requests, or some of its pools.
func (m *mapping) give(s *ours, cursors map[string][2]*cursor) {
	need, optional := m.families(s)
	if requested := s.settings.addresses; len(requested) > 0 {
		m.giveRequested(s, requested, need)
		return
	}
	if s.settings.pool != "" && !slices.ContainsFunc(m.Pools, func(p Pool) bool { return p.Name == s.settings.pool }) {
		m.lacks(s, fmt.Sprintf("there is no pool %q: use one of %s", s.settings.pool, m.poolNames()))
		return
	}
	for i, four := range need {
		if slices.ContainsFunc(s.vips, func(a netip.Addr) bool { return a.Is4() == four }) {
			continue
		}
		a, ok := m.shared(s, four)
		if !ok {
			a, ok = m.fresh(s, four, cursors)
		}
		switch {
		case ok:
			m.take(s, a)
		case i > 0 && optional && len(s.vips) > 0: // PreferDualStack
		default:
			m.lacks(s, fmt.Sprintf("no %s address is free in %s: add addresses to a pool, or delete Services", familyName(four), m.poolNamesFor(s)))
			return
		}
	}
	slices.SortStableFunc(s.vips, func(a, b netip.Addr) int { return slices.Index(need, a.Is4()) - slices.Index(need, b.Is4()) })
}

func (m *mapping) giveRequested(s *ours, requested []netip.Addr, need []bool) {
	s.vips = slices.DeleteFunc(s.vips, func(a netip.Addr) bool { return !slices.Contains(requested, a) })
	for _, a := range requested {
		if slices.Contains(s.vips, a) {
			continue
		}
		why := m.whyNot(s, a)
		switch {
		case !slices.Contains(need, a.Is4()):
			why = fmt.Sprintf("%s is requested, and the Service has no %s (spec.ipFamilies)", a, familyName(a.Is4()))
		case m.pool(a) == nil:
			why = fmt.Sprintf("%s is requested, and no pool has it", a)
		}
		if why != "" {
			m.lacks(s, why)
			return
		}
		m.take(s, a)
	}
	slices.SortFunc(s.vips, func(a, b netip.Addr) int { return slices.Index(requested, a) - slices.Index(requested, b) })
}

// lacks refuses a Service for want of an address. What it has in the fleet it keeps.
func (m *mapping) lacks(s *ours, why string) {
	m.refuse(s, ReasonNoAddress, why)
	s.fallback, s.lacking = true, true
	for _, a := range s.vips {
		m.taken[a] = slices.DeleteFunc(m.taken[a], func(h holder) bool { return h.of == s })
	}
	s.vips = nil
	if !s.inFleet {
		return
	}
	for _, a := range s.held {
		if m.whyNot(s, a) == "" {
			m.take(s, a)
		}
	}
}

// shared is an address that Services of the same key have and that has room for this one's ports.
func (m *mapping) shared(s *ours, four bool) (found netip.Addr, ok bool) {
	if s.settings.sharing == "" {
		return found, false
	}
	for _, a := range m.sharing[s.settings.sharing] {
		pool := m.pool(a)
		if a.Is4() == four && pool != nil && m.mayUse(s, pool) && len(m.taken[a]) > 0 && m.whyNot(s, a) == "" {
			return a, true
		}
	}
	return netip.Addr{}, false
}

func (m *mapping) fresh(s *ours, four bool, cursors map[string][2]*cursor) (netip.Addr, bool) {
	family := 1
	if four {
		family = 0
	}
	for i := range m.Pools {
		if p := &m.Pools[i]; m.mayUse(s, p) {
			if a, ok := cursors[p.Name][family].free(func(a netip.Addr) bool { return len(m.taken[a]) > 0 || m.hosts[a] != "" }); ok {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

func (m *mapping) poolNames() string {
	var names []string
	for _, p := range m.Pools {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

func (m *mapping) poolNamesFor(s *ours) string {
	var names []string
	for i := range m.Pools {
		if m.mayUse(s, &m.Pools[i]) {
			names = append(names, m.Pools[i].Name)
		}
	}
	return model.Counted(len(names), "pool", "pools") + " (" + strings.Join(names, ", ") + ")"
}

func familyName(four bool) string {
	if four {
		return "IPv4"
	}
	return "IPv6"
}
