package kube

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ballast-lb/ballast/internal/model"
)

// healthPath is what kube-proxy answers at healthCheckNodePort: 200 where an endpoint of the node is ready.
const healthPath = "/healthz"

// wanted is a service of the fleet that a Service or a listener asks for.
type wanted struct {
	name     string
	protocol model.Protocol
	ports    []uint16
	source   types.NamespacedName // of endpoints
	spec     *corev1.ServiceSpec  // that fields follow from
}

// build makes the services of one Service.
func (m *mapping) build(s *ours) {
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; protocolOf(p) == 0 {
			m.event(s, ReasonPort, fmt.Sprintf("port %d is of %s: load balancers forward TCP and UDP alone", p.Port, p.Protocol))
		}
	}
	var list []wanted
	for _, protocol := range protocols {
		list = append(list, wanted{m.name(s.key, protocol), protocol, portsOf(s.Service, protocol), s.key, &s.Spec})
	}
	m.buildAll(s, list)
}

// buildAll makes the services of a Service or a Gateway. What cannot be had as it is wanted goes on with the settings that the fleet has, and
// servers as they are now.
func (m *mapping) buildAll(s *ours, list []wanted) {
	first := len(m.entries)
	for i := range list {
		if s.fallback {
			break
		}
		if one, why := m.make(s, &list[i]); why != "" {
			m.refuse(s, ReasonInvalid, lower(list[i].protocol)+": "+why)
			s.fallback = true
		} else if len(one.Ports)+len(one.PortRanges) > 0 {
			m.entries = append(m.entries, one)
		}
	}
	if !s.fallback {
		return
	}
	m.entries = m.entries[:first]
	for i := range list {
		if before := m.byName[list[i].name]; before != nil && before.Owner == m.Owner {
			m.entries = append(m.entries, m.goOn(s, before, list[i].source))
		}
	}
}

// goOn is a service as the fleet has it, with servers as they are now.
func (m *mapping) goOn(s *ours, before *model.Service, source types.NamespacedName) entry {
	e := entry{Service: before.Clone(), of: s, before: before, form: earlierSettings}
	e.Servers = m.servers(s, source, before.VIPs(), before.Forward == model.ForwardSRv6)
	m.keepLast(s, &e)
	if m.objections(&e) != "" {
		e.back(earlier)
	}
	m.sayExcluded(s, &e)
	return e
}

// prefer4 reports whether load balancers reach nodes by IPv4 that have both.
func (m *mapping) prefer4(s *ours, vips []netip.Addr) bool {
	if len(s.Spec.IPFamilies) > 0 {
		return s.Spec.IPFamilies[0] == corev1.IPv4Protocol
	}
	return len(vips) == 0 || vips[0].Is4()
}

// make makes a service. why says why it cannot be had; one without ports is not wanted.
func (m *mapping) make(s *ours, w *wanted) (e entry, why string) {
	e = entry{Service: model.NewService(), of: s, before: m.byName[w.name]}
	if len(w.ports) == 0 || len(s.vips) == 0 {
		return e, ""
	}
	if e.before != nil && e.before.Owner != m.Owner {
		return e, fmt.Sprintf("the fleet has a service %s already, which is not of %s: remove that, or choose another --prefix", w.name, m.Owner)
	}
	e.Name, e.Owner, e.Protocol = w.name, m.Owner, w.protocol
	e.VIP, e.MoreVIPs = s.vips[0], slices.Clone(s.vips[1:])
	e.setPorts(w.ports)
	var none bool
	if e.Allow, none = s.settings.allowed(s.vips); none {
		return e, "spec.loadBalancerSourceRanges: none is of the family of an address of the Service: nobody could connect"
	}
	e.defaults(s, w.spec)
	for i := range s.settings.fields {
		if f := &s.settings.fields[i]; f.protocol == 0 || f.protocol == w.protocol {
			if err := f.set(&e.Service); err != nil {
				return e, AnnotationPrefix + f.key + ": " + err.Error()
			}
		}
	}
	e.Servers = m.servers(s, w.source, s.vips, e.Forward == model.ForwardSRv6)
	m.keepLast(s, &e)
	e.complete(s)
	if why = e.breaks(s); why == "" {
		why = m.objections(&e)
	}
	if why == "" {
		m.sayExcluded(s, &e)
	}
	return e, why
}

// breaks tells why a change of affinity is not made: connections would break, and nobody has said that this is meant. What lives is not known here.
func (e *entry) breaks(s *ours) string {
	before := e.before
	if before == nil || before.Affinity == e.Affinity || len(before.Servers) == 0 || !before.SharesVIP(&e.Service) || s.settings.replace == before.Affinity.String() {
		return ""
	}
	which, why := model.AffinityBreaks(before, &e.Service)
	if which == "" {
		return ""
	}
	return fmt.Sprintf("affinity %s -> %s: of its connections %s break: %s: if that is meant, annotate it with %s%s: %s",
		before.Affinity, e.Affinity, which, why, AnnotationPrefix, replaceKey, before.Affinity)
}

// chosen reports whether an annotation sets a field.
func (e *entry) chosen(s *ours, key string) bool {
	return slices.ContainsFunc(s.settings.fields, func(f given) bool {
		return f.Key == key && (f.protocol == 0 || f.protocol == e.Protocol)
	})
}

// defaults are set before annotations.
func (e *entry) defaults(s *ours, spec *corev1.ServiceSpec) {
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		e.Placement.Over, e.Dispatch = model.PlaceSource, model.DispatchMaglev
	}
	if port := spec.HealthCheckNodePort; port > 0 && port <= math.MaxUint16 && !e.chosen(s, "health.check") {
		e.Health.Check, e.Health.Port, e.Health.Path = model.CheckHTTP, uint16(port), healthPath
	}
}

// complete sets what follows from the rest: servers have weights, so connections go by weight; a table has room for all servers.
func (e *entry) complete(s *ours) {
	takes := uint32(0)
	for i := range e.Servers {
		if e.Servers[i].TakesNew() {
			takes++
		}
	}
	e.ApplyDefaults()
	if e.Dispatch == model.DispatchRR && !e.chosen(s, "dispatch") {
		if e.Dispatch = model.DispatchWRR; takes > model.MaxRoundServers {
			e.Dispatch = model.DispatchMaglev
		}
	}
	if e.before != nil {
		e.TableSlots = max(e.TableSlots, e.before.TableSlots)
	}
	for _, size := range model.TableSizes() {
		if e.TableSlots < takes && size >= takes {
			e.TableSlots = size
			break
		}
	}
}

// portsOf are the ports of a protocol, ascending.
func portsOf(s *corev1.Service, protocol model.Protocol) (ports []uint16) {
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; protocolOf(p) == protocol && p.Port > 0 && p.Port <= math.MaxUint16 {
			ports = append(ports, uint16(p.Port))
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// setPorts joins consecutive ones to ranges where there are more than a service may have.
func (e *entry) setPorts(ports []uint16) {
	if e.Ports = ports; len(ports) <= model.MaxPorts {
		return
	}
	e.Ports = nil
	for i := 0; i < len(ports); {
		end := i + 1
		for end < len(ports) && ports[end] == ports[end-1]+1 {
			end++
		}
		if end-i > 1 {
			e.PortRanges = append(e.PortRanges, model.PortRange{First: ports[i], Last: ports[end-1]})
		} else {
			e.Ports = append(e.Ports, ports[i])
		}
		i = end
	}
}

// placeholder are keys of a fleet that is only looked at.
var placeholder = model.Keys{Placement: [16]byte{1}, Current: 1, Cookie: map[uint32][16]byte{1: {1}}}

// numbered is a service whose servers have ids: any will do to see whether it makes sense.
func numbered(s *model.Service) model.Service {
	n := *s
	n.Servers = slices.Clone(s.Servers)
	for i := range n.Servers {
		n.Servers[i].ID = uint16(i + 1)
	}
	return n
}

// objections say why a service makes no sense by itself; empty: it does.
func (m *mapping) objections(e *entry) string {
	fleet := model.Fleet{Keys: placeholder, Services: []model.Service{numbered(&e.Service)}}
	if err := fleet.Validate(); err != nil {
		return reasonsOf(err)
	}
	return ""
}

// limit leaves out the newest Services that the fleet has no room for.
func (m *mapping) limit() {
	room := model.MaxServices
	for i := range m.in.Fleet {
		if s := &m.in.Fleet[i]; s.Owner != m.Owner {
			room -= max(1, len(s.VIPs()))
		}
	}
	var left []entry
	over := map[*ours]bool{}
	for _, e := range m.entries {
		if need := max(1, len(e.VIPs())); e.before == nil && (over[e.of] || need > room) {
			over[e.of] = true
		} else {
			room -= need
			left = append(left, e)
		}
	}
	m.entries = left
	for _, s := range m.services {
		if over[s] {
			m.refuse(s, ReasonNoRoom, fmt.Sprintf("the fleet has room for %d services, an address of each counting as one: delete Services, or split the fleet", model.MaxServices))
		}
	}
}
