package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/ballast-lb/ballast/internal/model"
)

// RouteObject is what should be of one route.
type RouteObject struct {
	Route Referent // *TCPRoute, *UDPRoute or *TLSRoute
	// Parents are all of status.parents, those of other controllers as they are, conditions of ours without a time.
	Parents []gw.RouteParentStatus
}

// route is one of any kind.
type route struct {
	Referent
	kind      gw.Kind
	protocol  model.Protocol
	key       types.NamespacedName
	parents   []gw.ParentReference
	hostnames []gw.Hostname
	refs      []gw.BackendRef
	rules     int
	status    []gw.RouteParentStatus
	refused   string           // why no Gateway takes it, whatever its listeners are
	resolved  metav1.Condition // of its backend
	backend   *backend         // that gets connections; nil: none can
	target    string           // whom its connections are for, by name
	ours      map[int][]*attachment
	reasons   map[int]metav1.Condition // why a parent of ours has no listener for it
}

// backend is a port of a Service.
type backend struct {
	service *corev1.Service
	port    *corev1.ServicePort
}

// attachment is a route at a listener that allows it.
type attachment struct {
	route    *route
	listener *listener
	refused  string // although it is allowed
	waits    string // it is accepted, and an older one gets the connections
}

// attached are how many routes a listener has.
func (l *listener) attached() (n int32) {
	var last *route
	for _, a := range l.attachments { // those of a route follow each other
		if a.refused == "" && a.route != last {
			n, last = n+1, a.route
		}
	}
	return n
}

func (m *mapping) findRoutes() {
	add := func(object Referent, kind gw.Kind, protocol model.Protocol, spec *gw.CommonRouteSpec, status *gw.RouteStatus, rules int) *route {
		r := &route{Referent: object, kind: kind, protocol: protocol, key: types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}, parents: spec.ParentRefs,
			status: status.Parents, rules: rules, ours: map[int][]*attachment{}, reasons: map[int]metav1.Condition{}}
		m.routes = append(m.routes, r)
		return r
	}
	for _, t := range m.in.Gateways.TCPRoutes {
		r := add(t, "TCPRoute", model.ProtocolTCP, &t.Spec.CommonRouteSpec, &t.Status.RouteStatus, len(t.Spec.Rules))
		for i := range t.Spec.Rules {
			r.refs = append(r.refs, t.Spec.Rules[i].BackendRefs...)
		}
	}
	for _, u := range m.in.Gateways.UDPRoutes {
		r := add(u, "UDPRoute", model.ProtocolUDP, &u.Spec.CommonRouteSpec, &u.Status.RouteStatus, len(u.Spec.Rules))
		for i := range u.Spec.Rules {
			r.refs = append(r.refs, u.Spec.Rules[i].BackendRefs...)
		}
	}
	for _, t := range m.in.Gateways.TLSRoutes {
		r := add(t, "TLSRoute", model.ProtocolTCP, &t.Spec.CommonRouteSpec, &t.Status.RouteStatus, len(t.Spec.Rules))
		for i := range t.Spec.Rules {
			r.refs = append(r.refs, t.Spec.Rules[i].BackendRefs...)
		}
		r.hostnames = t.Spec.Hostnames
	}
	slices.SortFunc(m.routes, func(a, b *route) int {
		return cmp.Or(a.GetCreationTimestamp().Time.Compare(b.GetCreationTimestamp().Time), cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name),
			cmp.Compare(a.kind, b.kind))
	})
	for _, r := range m.routes {
		if m.attach(r) {
			m.resolve(r)
		}
	}
	for _, g := range m.ordered {
		for _, l := range g.listeners {
			l.bind()
		}
	}
}

// attach notes at which listeners of ours a route is allowed, and reports whether it names a Gateway of ours.
func (m *mapping) attach(r *route) (named bool) {
	for i, parent := range r.parents {
		if parent.Group != nil && *parent.Group != gw.GroupName || parent.Kind != nil && *parent.Kind != "Gateway" {
			continue
		}
		key := types.NamespacedName{Namespace: r.key.Namespace, Name: string(parent.Name)}
		if parent.Namespace != nil {
			key.Namespace = string(*parent.Namespace)
		}
		g := m.gateways[key]
		if g == nil {
			continue
		}
		named = true
		refused := condition(gw.RouteConditionAccepted, false, gw.RouteReasonNoMatchingParent, "the Gateway has no listener of that name and port")
		for _, l := range g.listeners {
			if parent.SectionName != nil && *parent.SectionName != l.Name || parent.Port != nil && *parent.Port != l.Port {
				continue
			}
			why, reason := m.mayAttach(r, l)
			if why == "" {
				a := &attachment{route: r, listener: l}
				r.ours[i] = append(r.ours[i], a)
				l.attachments = append(l.attachments, a)
			} else if refused.Reason != string(gw.RouteReasonNoMatchingListenerHostname) {
				refused = condition(gw.RouteConditionAccepted, false, reason, fmt.Sprintf("listener %s: %s", l.Name, why))
			}
		}
		r.reasons[i] = refused
	}
	return named
}

// mayAttach says why a listener does not take a route; empty: it does.
func (m *mapping) mayAttach(r *route, l *listener) (why string, reason gw.RouteConditionReason) {
	if !slices.ContainsFunc(l.supported, func(k gw.RouteGroupKind) bool { return k.Kind == r.kind }) {
		return fmt.Sprintf("it takes no %s", r.kind), gw.RouteReasonNotAllowedByListeners
	}
	if !m.allows(l, r.key.Namespace) {
		return fmt.Sprintf("allowedRoutes does not allow namespace %s", r.key.Namespace), gw.RouteReasonNotAllowedByListeners
	}
	if r.kind == "TLSRoute" && l.Hostname != nil && *l.Hostname != "" && len(r.hostnames) > 0 &&
		!slices.ContainsFunc(r.hostnames, func(h gw.Hostname) bool { return intersect(string(h), string(*l.Hostname)) }) {
		return fmt.Sprintf("it has hostname %s, and none of the route's is one of these", *l.Hostname), gw.RouteReasonNoMatchingListenerHostname
	}
	if !l.valid() {
		return "it is not accepted: " + l.accepted.Message, gw.RouteReasonNotAllowedByListeners
	}
	return "", ""
}

func (m *mapping) allows(l *listener, namespace string) bool {
	from, selector := gw.NamespacesFromSame, (*metav1.LabelSelector)(nil)
	if l.AllowedRoutes != nil && l.AllowedRoutes.Namespaces != nil {
		if n := l.AllowedRoutes.Namespaces; n.From != nil {
			from, selector = *n.From, n.Selector
		}
	}
	switch from {
	case gw.NamespacesFromAll:
		return true
	case gw.NamespacesFromSame:
		return namespace == l.of.Namespace
	case gw.NamespacesFromSelector:
		s, err := metav1.LabelSelectorAsSelector(selector)
		n := m.cluster.namespaces[namespace]
		return err == nil && n != nil && s.Matches(labels.Set(n.Labels))
	}
	return false
}

// intersect reports whether a name can be both, * in front being any number of labels.
func intersect(a, b string) bool {
	if a == b {
		return true
	}
	rest, wild := strings.CutPrefix(a, "*")
	other, also := strings.CutPrefix(b, "*")
	switch {
	case wild && also:
		return strings.HasSuffix(rest, other) || strings.HasSuffix(other, rest)
	case wild:
		return strings.HasSuffix(b, rest)
	case also:
		return strings.HasSuffix(a, other)
	}
	return false
}

// resolve finds the backend of a route.
//
// Only one may have a weight: nodes are what load balancers choose, and a node spreads the connections of an address and port over its pods evenly.
func (m *mapping) resolve(r *route) {
	r.resolved = condition(gw.RouteConditionResolvedRefs, true, gw.RouteReasonResolvedRefs, "")
	if r.rules > 1 {
		r.refused = fmt.Sprintf("spec.rules: %d rules: nothing distinguishes connections: use one", r.rules)
		return
	}
	var weighed []string
	for i := range r.refs {
		ref := &r.refs[i]
		namespace := r.key.Namespace
		if ref.Namespace != nil {
			namespace = string(*ref.Namespace)
		}
		b, reason, why := m.backendOf(r, ref, namespace)
		if why != "" && r.resolved.Status == metav1.ConditionTrue {
			r.resolved = condition(gw.RouteConditionResolvedRefs, false, reason, fmt.Sprintf("backendRefs[%d]: %s", i, why))
		}
		if ref.Weight != nil && *ref.Weight <= 0 {
			continue
		}
		target := fmt.Sprintf("%s/%s", namespace, ref.Name)
		if ref.Port != nil {
			target = fmt.Sprintf("%s:%d", target, *ref.Port)
		}
		if !slices.Contains(weighed, target) {
			weighed = append(weighed, target)
		}
		r.target, r.backend = target, b
	}
	if len(weighed) > 1 {
		r.backend = nil
		r.refused = fmt.Sprintf("%s have a weight above 0: a node spreads connections over its pods evenly, so that weights would not hold: set all but one to 0", strings.Join(weighed, ", "))
	}
}

// backendOf is the port of a Service that a reference names. why says why it cannot be had.
func (m *mapping) backendOf(r *route, ref *gw.BackendRef, namespace string) (b *backend, reason gw.RouteConditionReason, why string) {
	switch {
	case ref.Group != nil && *ref.Group != "" || ref.Kind != nil && *ref.Kind != "Service":
		return nil, gw.RouteReasonInvalidKind, "only Services can be backends"
	case namespace != r.key.Namespace && !m.granted(r, namespace, string(ref.Name)):
		return nil, gw.RouteReasonRefNotPermitted, fmt.Sprintf("no ReferenceGrant of namespace %s lets a %s of namespace %s refer to Service %s", namespace, r.kind, r.key.Namespace, ref.Name)
	}
	s := m.cluster.services[types.NamespacedName{Namespace: namespace, Name: string(ref.Name)}]
	switch {
	case s == nil:
		return nil, gw.RouteReasonBackendNotFound, fmt.Sprintf("there is no Service %s in namespace %s", ref.Name, namespace)
	case ref.Port == nil:
		return nil, gw.RouteReasonUnsupportedValue, "port: missing: name the Service's"
	case s.Spec.Type == corev1.ServiceTypeExternalName || len(s.Spec.Selector) == 0:
		return nil, gw.RouteReasonUnsupportedValue, fmt.Sprintf("Service %s selects no pods: nodes could not pass connections on; give it a selector", ref.Name)
	}
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; p.Port == *ref.Port && protocolOf(p) == r.protocol {
			return &backend{s, p}, "", ""
		}
	}
	return nil, gw.RouteReasonBackendNotFound, fmt.Sprintf("Service %s has no port %d of %s", ref.Name, *ref.Port, r.protocol)
}

// granted reports whether a namespace lets a route refer to a Service of it.
func (m *mapping) granted(r *route, namespace, service string) bool {
	for _, g := range m.cluster.grants[namespace] {
		from := slices.ContainsFunc(g.Spec.From, func(f gw.ReferenceGrantFrom) bool {
			return f.Group == gw.GroupName && f.Kind == r.kind && string(f.Namespace) == r.key.Namespace
		})
		if from && slices.ContainsFunc(g.Spec.To, func(t gw.ReferenceGrantTo) bool {
			return t.Group == "" && t.Kind == "Service" && (t.Name == nil || *t.Name == "" || string(*t.Name) == service)
		}) {
			return true
		}
	}
	return false
}

// bind chooses whose connections a listener's are: the oldest route's. Routes of server names that need another backend are refused, as
// connections would reach the wrong one; of the others, the younger ones wait.
func (l *listener) bind() {
	for _, a := range l.attachments { // the oldest first
		switch r := a.route; {
		case r.refused != "":
			a.refused = r.refused
		case l.bound == nil:
			l.bound = r
		case l.bound == r:
		case r.kind == "TLSRoute" && r.target != l.bound.target:
			a.refused = fmt.Sprintf("listener %s: %s is older and has another backend, and load balancers do not read server names (SNI): use a port for each backend", l.Name, l.bound.key)
		case r.target != l.bound.target:
			a.waits = fmt.Sprintf("listener %s: %s is older and gets all connections", l.Name, l.bound.key)
		}
	}
}

// finishRoutes collects the statuses of all routes that name a Gateway of ours, or did.
func (m *mapping) finishRoutes() {
	for _, r := range m.routes {
		var list []gw.RouteParentStatus
		for i := range r.parents {
			if reason, named := r.reasons[i]; named {
				list = append(list, m.parentStatus(r, i, reason))
			}
		}
		if parents, changed := m.joined(r.status, list); changed {
			m.out.Routes = append(m.out.Routes, RouteObject{r.Referent, parents})
		}
	}
}

func (m *mapping) parentStatus(r *route, parent int, refused metav1.Condition) gw.RouteParentStatus {
	accepted := refused
	var waits, not []string
	for _, a := range r.ours[parent] {
		switch {
		case a.refused != "":
			not = append(not, a.refused)
		case a.waits != "":
			waits = append(waits, a.waits)
		}
	}
	if all := len(r.ours[parent]); all > len(not) {
		accepted = condition(gw.RouteConditionAccepted, true, gw.RouteReasonAccepted, strings.Join(slices.Concat(waits, not), "; "))
	} else if all > 0 {
		accepted = condition(gw.RouteConditionAccepted, false, gw.RouteReasonUnsupportedValue, strings.Join(slices.Compact(not), "; "))
	}
	if message := accepted.Message; message != "" {
		m.out.Events = append(m.out.Events, Event{r.Referent, ReasonRoute, message})
	}
	if r.resolved.Status == metav1.ConditionFalse {
		m.out.Events = append(m.out.Events, Event{r.Referent, ReasonBackend, r.resolved.Message})
	}
	conditions := []metav1.Condition{accepted, r.resolved}
	observe(conditions, r.GetGeneration())
	return gw.RouteParentStatus{ParentRef: r.parents[parent], ControllerName: gw.GatewayController(m.Class), Conditions: conditions}
}

// maxParents is how many status.parents a route may have.
const maxParents = 32

// joined are the entries of a route's status, with ours in the place of those that we had. changed: some of them are ours, or were, and there is
// room for them.
func (m *mapping) joined(have, ours []gw.RouteParentStatus) (parents []gw.RouteParentStatus, changed bool) {
	left := slices.Clone(ours)
	for _, one := range have {
		if string(one.ControllerName) != m.Class {
			parents = append(parents, one)
			continue
		}
		changed = true
		i := slices.IndexFunc(left, func(p gw.RouteParentStatus) bool { return sameParent(p.ParentRef, one.ParentRef) })
		if i >= 0 {
			parents = append(parents, left[i])
			left = slices.Delete(left, i, i+1)
		}
	}
	parents = append(parents, left...)
	return parents, (changed || len(ours) > 0) && len(parents) <= maxParents
}

func sameParent(a, b gw.ParentReference) bool {
	return same(a.Group, b.Group) && same(a.Kind, b.Kind) && same(a.Namespace, b.Namespace) && a.Name == b.Name && same(a.SectionName, b.SectionName) && same(a.Port, b.Port)
}

func same[T comparable](a, b *T) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}
