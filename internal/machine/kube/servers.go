package kube

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/ballast-lb/ballast/internal/model"
)

// cluster is what is looked up.
type cluster struct {
	nodes      map[string]*corev1.Node
	slices     map[types.NamespacedName][]*discoveryv1.EndpointSlice
	services   map[types.NamespacedName]*corev1.Service
	namespaces map[string]*corev1.Namespace
	grants     map[string][]*gw.ReferenceGrant // by namespace
}

func (m *mapping) index() {
	m.cluster = cluster{make(map[string]*corev1.Node, len(m.in.Nodes)), make(map[types.NamespacedName][]*discoveryv1.EndpointSlice, len(m.in.Slices)),
		make(map[types.NamespacedName]*corev1.Service, len(m.in.Services)), make(map[string]*corev1.Namespace, len(m.in.Gateways.Namespaces)), map[string][]*gw.ReferenceGrant{}}
	for _, s := range m.in.Services {
		m.cluster.services[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s
	}
	for _, n := range m.in.Gateways.Namespaces {
		m.cluster.namespaces[n.Name] = n
	}
	for _, g := range m.in.Gateways.Grants {
		m.cluster.grants[g.Namespace] = append(m.cluster.grants[g.Namespace], g)
	}
	for _, n := range m.in.Nodes {
		m.cluster.nodes[n.Name] = n
	}
	for _, s := range m.in.Slices {
		key := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		m.cluster.slices[key] = append(m.cluster.slices[key], s)
	}
}

// endpoints are those of a Service on one node, by family, IPv4 first: pods have an address of each.
type endpoints struct {
	ready, serving [2]map[string]bool // serving: although they end
}

func (e *endpoints) add(to *[2]map[string]bool, family int, addresses []string) {
	if to[family] == nil {
		to[family] = map[string]bool{}
	}
	for _, a := range addresses[:min(1, len(addresses))] { // further ones are the same endpoint
		to[family][a] = true
	}
}

func most(of [2]map[string]bool) int { return max(len(of[0]), len(of[1])) }

// endpointsOf are the endpoints of a Service by node. Slices can have one twice.
func (m *mapping) endpointsOf(service types.NamespacedName) map[string]*endpoints {
	found := map[string]*endpoints{}
	for _, slice := range m.cluster.slices[service] {
		family := slices.Index([]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}, slice.AddressType)
		if family < 0 {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.NodeName == nil {
				continue
			}
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			serving := e.Conditions.Serving == nil && ready || e.Conditions.Serving != nil && *e.Conditions.Serving
			at := found[*e.NodeName]
			if at == nil {
				at = &endpoints{}
				found[*e.NodeName] = at
			}
			switch {
			case ready:
				at.add(&at.ready, family, e.Addresses)
			case serving && e.Conditions.Terminating != nil && *e.Conditions.Terminating:
				at.add(&at.serving, family, e.Addresses)
			}
		}
	}
	return found
}

// servers are the nodes with endpoints of a Service, source, for s at vips, by name. only6: load balancers reach nodes by IPv6 alone.
// Endpoints that end and still serve are drained, unless no others are left: then nodes pass new connections on to these.
func (m *mapping) servers(s *ours, source types.NamespacedName, vips []netip.Addr, only6 bool) (servers []model.Server) {
	prefer4 := !only6 && m.prefer4(s, vips)
	found := m.endpointsOf(source)
	ready := false
	for name, e := range found {
		ready = ready || most(e.ready) > 0 && m.cluster.nodes[name] != nil && !excluded(m.cluster.nodes[name])
	}
	var unreachable, looping []string
	for name, e := range found {
		node := m.cluster.nodes[name]
		weight, state := most(e.ready), model.StateActive
		if weight == 0 {
			if weight = most(e.serving); ready {
				state = model.StateDraining
			}
		}
		if node == nil || weight == 0 {
			continue
		}
		address := internalIP(node, prefer4, only6)
		if !address.IsValid() {
			unreachable = append(unreachable, name)
			continue
		}
		if len(m.taken[address]) > 0 {
			looping = append(looping, name)
			continue
		}
		if whose := m.balancers[address]; whose != "" {
			m.event(s, ReasonNode, fmt.Sprintf("%s has the address of %s in status.addresses: what is sent there would be steered once more", name, whose))
			continue
		}
		if excluded(node) {
			state = model.StateDraining
		}
		servers = append(servers, model.Server{Name: short(name), Address: address, Weight: uint16(min(weight, model.MaxWeight)), State: state})
	}
	slices.SortFunc(servers, func(a, b model.Server) int { return cmp.Compare(a.Name, b.Name) })
	if slices.Sort(unreachable); len(unreachable) > 0 {
		m.event(s, ReasonNode, fmt.Sprintf("%s no InternalIP in status.addresses%s: load balancers cannot reach it",
			model.Some(unreachable)+map[bool]string{true: " has", false: " have"}[len(unreachable) == 1], map[bool]string{true: " of IPv6, which forward: srv6 needs"}[only6]))
	}
	if slices.Sort(looping); len(looping) > 0 {
		m.event(s, ReasonNode, fmt.Sprintf("%s the address of a service in status.addresses: packets would loop",
			model.Some(looping)+map[bool]string{true: " has", false: " have"}[len(looping) == 1]))
	}
	return servers
}

// excluded reports whether an operator has taken a node out.
func excluded(n *corev1.Node) bool {
	_, out := n.Labels[corev1.LabelNodeExcludeBalancers]
	return out
}

// internalIP is where load balancers reach a node; invalid: nowhere.
func internalIP(n *corev1.Node, prefer4, only6 bool) (other netip.Addr) {
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if a.Type != corev1.NodeInternalIP || err != nil {
			continue
		}
		if ip.Is4() == prefer4 {
			return ip
		}
		if !only6 && !other.IsValid() {
			other = ip
		}
	}
	return other
}

// keepLast has a service keep the servers that it has where none is known any more: a source that is empty, or cannot be reached, takes away
// no last server.
func (m *mapping) keepLast(s *ours, e *entry) {
	if e.before == nil {
		return
	}
	if len(e.Servers) > 0 || len(e.before.Servers) == 0 {
		return
	}
	e.Servers = slices.Clone(e.before.Servers)
	m.out.Kept = append(m.out.Kept, e.Name)
	var names []string
	for i := range e.Servers {
		names = append(names, e.Servers[i].Name)
	}
	m.event(s, ReasonKept, fmt.Sprintf("no endpoint is ready or serving on a node: %s keeps its last servers, %s", e.Name, model.Some(names)))
}

// sayExcluded tells of a service whose nodes all drain.
func (m *mapping) sayExcluded(s *ours, e *entry) {
	taking := slices.ContainsFunc(e.Servers, func(server model.Server) bool { return server.TakesNew() })
	if len(e.Servers) == 0 || taking {
		return
	}
	var names []string
	for i := range e.Servers {
		names = append(names, e.Servers[i].Name)
	}
	m.event(s, ReasonExcluded, fmt.Sprintf("no node takes new connections: every node with endpoints (%s) drains: remove its label %s, or move pods to other nodes",
		model.Some(names), corev1.LabelNodeExcludeBalancers))
}

// protocols are those that we forward.
var protocols = []model.Protocol{model.ProtocolTCP, model.ProtocolUDP}

// protocolOf is the protocol of a port; 0: none of ours.
func protocolOf(p *corev1.ServicePort) model.Protocol {
	switch p.Protocol {
	case corev1.ProtocolTCP, "":
		return model.ProtocolTCP
	case corev1.ProtocolUDP:
		return model.ProtocolUDP
	}
	return 0
}

func lower(p model.Protocol) string { return strings.ToLower(p.String()) }
