package kube

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/ballast-lb/ballast/internal/model"
)

// Gateways are the objects of the Gateway API in a cluster. Nothing of them is changed.
type Gateways struct {
	Known      bool // the API server has the Gateway API, and everything was listed: else the rest is empty, and what is there stays
	Classes    []*gw.GatewayClass
	Gateways   []*gw.Gateway
	TCPRoutes  []*gw.TCPRoute
	UDPRoutes  []*gw.UDPRoute
	TLSRoutes  []*gw.TLSRoute
	Grants     []*gw.ReferenceGrant
	Namespaces []*corev1.Namespace
}

// GatewayObject is what should be of one Gateway.
type GatewayObject struct {
	Gateway *gw.Gateway
	// Status is what should be in its status, conditions without a time; nil: it is not ours to write.
	Status *gw.GatewayStatus
	// Finalized reports whether it should have our finalizer, as that of an Object.
	Finalized bool
	// Services are those of its listeners in the fleet, by name, and the index of the listener. Of a Gateway that is ours no more they are those
	// that the fleet has.
	Services map[string]int
	// Derived are the names of its Services that should be in the cluster, and the index of the listener.
	Derived map[string]int
}

// Unserved notes that a listener does not get its connections, and why.
func (g *GatewayObject) Unserved(listener int, why string) {
	if g.Status != nil {
		setCondition(&g.Status.Listeners[listener].Conditions, condition(gw.ListenerConditionProgrammed, false, gw.ListenerReasonPending, why))
	}
}

// ClassObject is what should be of one GatewayClass: its condition, without a time.
type ClassObject struct {
	Class     *gw.GatewayClass
	Condition metav1.Condition
}

// gateway is one of ours.
type gateway struct {
	*gw.Gateway
	key       types.NamespacedName
	unit      *ours // its addresses and services; nil: it has none, and gets none
	listeners []*listener
	accepted  metav1.Condition
	requested []netip.Addr
}

// listener is one of a Gateway of ours.
type listener struct {
	*gw.Listener
	of          *gateway
	protocol    model.Protocol
	supported   []gw.RouteGroupKind
	accepted    metav1.Condition
	conflicted  metav1.Condition
	resolved    metav1.Condition
	attachments []*attachment
	bound       *route // whose backend gets the connections; nil: none
	pending     string // why the fleet does not get its service yet
	goesOn      bool   // with its last backend, as its routes are refused
}

func (l *listener) valid() bool { return l.accepted.Status == metav1.ConditionTrue }

// maxMessage is how long a condition's message is, in bytes, before it is cut: API servers take 32,768 and refuse the whole status else.
const maxMessage = 8192

// condition is one without a time and a generation.
func condition[T, R ~string](kind T, holds bool, reason R, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + " ..."
	}
	return metav1.Condition{Type: string(kind), Status: status, Reason: string(reason), Message: message}
}

func setCondition(list *[]metav1.Condition, c metav1.Condition) {
	for i := range *list {
		if (*list)[i].Type == c.Type {
			c.ObservedGeneration = (*list)[i].ObservedGeneration
			(*list)[i] = c
			return
		}
	}
	*list = append(*list, c)
}

// findGateways finds the Gateways of our classes, and what their listeners can be. One whose class is gone stays ours, if it was.
func (m *mapping) findGateways() {
	in := &m.in.Gateways
	classes := make(map[string]*gw.GatewayClass, len(in.Classes))
	for _, class := range in.Classes {
		if classes[class.Name] = class; string(class.Spec.ControllerName) == m.Class {
			m.out.Classes = append(m.out.Classes, ClassObject{class, classCondition(class)})
		}
	}
	for _, g := range in.Gateways {
		class := classes[string(g.Spec.GatewayClassName)]
		finalized := slices.Contains(g.Finalizers, m.Finalizer())
		ours := class != nil && string(class.Spec.ControllerName) == m.Class || class == nil && finalized
		switch {
		case ours && g.DeletionTimestamp == nil:
			m.addGateway(g, class)
		case finalized:
			m.out.Gateways = append(m.out.Gateways, m.release(g))
			m.releasedGateway = true
		}
	}
	slices.SortFunc(m.out.Classes, func(a, b ClassObject) int { return cmp.Compare(a.Class.Name, b.Class.Name) })
}

// release is what should be of a Gateway that is ours no more: its finalizer goes once nothing of it is left.
func (m *mapping) release(g *gw.Gateway) GatewayObject {
	key := types.NamespacedName{Namespace: g.Namespace, Name: g.Name}
	var vips []netip.Addr
	for _, address := range g.Status.Addresses {
		if a, err := netip.ParseAddr(address.Value); err == nil {
			vips = append(vips, a)
		}
	}
	o := GatewayObject{Gateway: g, Services: map[string]int{}, Finalized: slices.ContainsFunc(m.derivedOfGateway[key], func(s *corev1.Service) bool { return holdsOne(s, vips) })}
	for port := uint16(1); ; port *= 10 { // the end of a name that is too long for a fleet depends on the length of the port
		for _, protocol := range protocols {
			head, _, _ := cutLast(m.listenerName(key, protocol, port))
			for _, name := range m.listenerServices[head] {
				o.Services[name] = 0
			}
		}
		if port == 10000 {
			return o
		}
	}
}

func classCondition(class *gw.GatewayClass) metav1.Condition {
	c := condition(gw.GatewayClassConditionStatusAccepted, true, gw.GatewayClassReasonAccepted, "")
	if class.Spec.ParametersRef != nil {
		c = condition(gw.GatewayClassConditionStatusAccepted, false, gw.GatewayClassReasonInvalidParameters,
			"spec.parametersRef: a class has no parameters: remove it, and annotate Gateways")
	}
	c.ObservedGeneration = class.Generation
	return c
}

func (m *mapping) addGateway(object *gw.Gateway, class *gw.GatewayClass) {
	g := &gateway{Gateway: object, key: types.NamespacedName{Namespace: object.Namespace, Name: object.Name}}
	for i := range object.Spec.Listeners {
		g.listeners = append(g.listeners, newListener(g, &object.Spec.Listeners[i]))
	}
	g.conflicts()
	g.accept(class)
	unit := m.unitOf(g)
	unit.held, unit.inFleet = m.addressesHeld(unit)
	if g.accepted.Status == metav1.ConditionTrue || len(unit.held) > 0 {
		g.unit = unit
		m.services = append(m.services, unit)
	}
	m.gateways[g.key] = g
	m.ordered = append(m.ordered, g)
	if class == nil {
		m.out.Events = append(m.out.Events, Event{object, ReasonClass, fmt.Sprintf("GatewayClass %s is gone: the Gateway goes on as it is; delete it, or name another class", object.Spec.GatewayClassName)})
	}
}

// unitOf is a Gateway as a Service that nobody sees: it gets addresses and settings in the same way.
func (m *mapping) unitOf(g *gateway) *ours {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: g.Name, Annotations: g.Annotations, CreationTimestamp: g.CreationTimestamp},
		Spec: corev1.ServiceSpec{ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal}}
	for _, address := range g.Status.Addresses {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: address.Value})
	}
	unit := &ours{Service: s, key: g.key, gateway: g}
	for _, l := range g.listeners {
		if !l.valid() {
			continue
		}
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: l.Port, Protocol: corev1.Protocol(strings.ToUpper(lower(l.protocol)))})
		if before := m.byName[m.listenerName(g.key, l.protocol, uint16(l.Port))]; before != nil && before.Owner == m.Owner {
			unit.before = append(unit.before, before)
		}
	}
	for _, a := range g.requested {
		family := corev1.IPv6Protocol
		if a.Is4() {
			family = corev1.IPv4Protocol
		}
		if !slices.Contains(s.Spec.IPFamilies, family) {
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, family)
		}
	}
	return unit
}

// accept says whether a Gateway can be ours as it is written.
func (g *gateway) accept(class *gw.GatewayClass) {
	refuse := func(reason gw.GatewayConditionReason, message string) {
		g.accepted = condition(gw.GatewayConditionAccepted, false, reason, message)
	}
	var unsupported []string
	for i, a := range g.Spec.Addresses {
		ip, err := netip.ParseAddr(a.Value)
		switch {
		case a.Type != nil && *a.Type != gw.IPAddressType:
			unsupported = append(unsupported, fmt.Sprintf("spec.addresses[%d]: type %s: use IPAddress", i, *a.Type))
		case a.Value != "" && (err != nil || ip.Zone() != "" || ip.Is4In6()):
			unsupported = append(unsupported, fmt.Sprintf("spec.addresses[%d]: %q is no IP address", i, a.Value))
		case a.Value != "" && !slices.Contains(g.requested, ip):
			g.requested = append(g.requested, ip)
		}
	}
	var invalid []string
	for _, l := range g.listeners {
		if !l.valid() {
			invalid = append(invalid, string(l.Name))
		}
	}
	switch {
	case len(unsupported) > 0:
		refuse(gw.GatewayReasonUnsupportedAddress, strings.Join(unsupported, "; "))
	case len(g.requested) > model.MaxVIPs:
		refuse(gw.GatewayReasonUnsupportedAddress, fmt.Sprintf("spec.addresses: %d addresses: request at most %d", len(g.requested), model.MaxVIPs))
	case class != nil && class.Spec.ParametersRef != nil, g.Spec.Infrastructure != nil && g.Spec.Infrastructure.ParametersRef != nil:
		refuse(gw.GatewayReasonInvalidParameters, "parametersRef: neither a class nor a Gateway has parameters: remove it, and annotate the Gateway")
	case len(invalid) == len(g.listeners):
		refuse(gw.GatewayReasonListenersNotValid, "no listener can be had; their conditions say why")
	case len(invalid) > 0:
		g.accepted = condition(gw.GatewayConditionAccepted, true, gw.GatewayReasonListenersNotValid, "these listeners cannot be had, and the others are: "+model.Some(invalid))
	default:
		g.accepted = condition(gw.GatewayConditionAccepted, true, gw.GatewayReasonAccepted, "")
	}
}

// conflicts refuses listeners that share a port: all of them, as the Gateway API wants.
func (g *gateway) conflicts() {
	type place struct {
		protocol model.Protocol
		port     int32
	}
	at := map[place][]*listener{}
	for _, l := range g.listeners {
		if l.valid() {
			at[place{l.protocol, l.Port}] = append(at[place{l.protocol, l.Port}], l)
		}
	}
	for where, list := range at {
		if len(list) == 1 {
			continue
		}
		reason, message := gw.ListenerReasonProtocolConflict, fmt.Sprintf("several listeners have port %d: load balancers distinguish connections by nothing else", where.port)
		if !slices.ContainsFunc(list, func(l *listener) bool { return l.Protocol != gw.TLSProtocolType }) {
			reason, message = gw.ListenerReasonHostnameConflict, fmt.Sprintf("several listeners have port %d, and load balancers do not read server names (SNI): use a port for each", where.port)
		}
		for _, l := range list {
			l.conflicted = condition(gw.ListenerConditionConflicted, true, reason, message)
			l.accepted = condition(gw.ListenerConditionAccepted, false, reason, message)
		}
	}
}

// routeKinds are those of each protocol of listeners.
var routeKinds = map[gw.ProtocolType]struct {
	protocol model.Protocol
	kind     gw.Kind
}{
	gw.TCPProtocolType: {model.ProtocolTCP, "TCPRoute"}, gw.UDPProtocolType: {model.ProtocolUDP, "UDPRoute"}, gw.TLSProtocolType: {model.ProtocolTCP, "TLSRoute"},
}

func newListener(g *gateway, spec *gw.Listener) *listener {
	l := &listener{Listener: spec, of: g, supported: []gw.RouteGroupKind{},
		accepted:   condition(gw.ListenerConditionAccepted, true, gw.ListenerReasonAccepted, ""),
		conflicted: condition(gw.ListenerConditionConflicted, false, gw.ListenerReasonNoConflicts, ""),
		resolved:   condition(gw.ListenerConditionResolvedRefs, true, gw.ListenerReasonResolvedRefs, "")}
	of, forwarded := routeKinds[spec.Protocol]
	l.protocol = of.protocol
	switch {
	case !forwarded:
		l.accepted = condition(gw.ListenerConditionAccepted, false, gw.ListenerReasonUnsupportedProtocol,
			fmt.Sprintf("protocol %s: load balancers forward connections and do not end them: use TCP, UDP, or TLS with mode Passthrough", spec.Protocol))
		return l
	case spec.Protocol == gw.TLSProtocolType && (spec.TLS == nil || spec.TLS.Mode == nil || *spec.TLS.Mode != gw.TLSModePassthrough):
		l.accepted = condition(gw.ListenerConditionAccepted, false, gw.ListenerReasonUnsupportedValue, "tls.mode Terminate: load balancers have no certificates of yours: use Passthrough")
		return l
	case spec.Port < 1 || spec.Port > 65535:
		l.accepted = condition(gw.ListenerConditionAccepted, false, gw.ListenerReasonUnsupportedValue, fmt.Sprintf("port %d: use 1 to 65535", spec.Port))
	}
	var wanted []gw.RouteGroupKind
	if spec.AllowedRoutes != nil {
		wanted = spec.AllowedRoutes.Kinds
	}
	group := gw.Group(gw.GroupName)
	if len(wanted) == 0 {
		l.supported = []gw.RouteGroupKind{{Group: &group, Kind: of.kind}}
	}
	var not []string
	for _, k := range wanted {
		if k.Kind != of.kind || k.Group != nil && *k.Group != gw.GroupName {
			not = append(not, string(k.Kind))
		} else if len(l.supported) == 0 {
			l.supported = append(l.supported, gw.RouteGroupKind{Group: &group, Kind: of.kind})
		}
	}
	if len(not) > 0 {
		l.resolved = condition(gw.ListenerConditionResolvedRefs, false, gw.ListenerReasonInvalidRouteKinds,
			fmt.Sprintf("allowedRoutes.kinds: a listener of protocol %s takes %s alone, not %s", spec.Protocol, of.kind, strings.Join(not, ", ")))
	}
	return l
}

// buildGateway makes the services of one Gateway: one for each listener whose route has a backend.
func (m *mapping) buildGateway(s *ours) {
	var list []wanted
	for _, l := range s.gateway.listeners {
		if w, ok := m.wantedOf(s, l); ok {
			list = append(list, w)
		}
	}
	m.buildAll(s, list)
}

// wantedOf is the service of a listener; false: there is none, or not yet.
func (m *mapping) wantedOf(s *ours, l *listener) (w wanted, ok bool) {
	if !l.valid() || len(s.vips) == 0 {
		return w, false
	}
	w = wanted{name: m.listenerName(s.key, l.protocol, uint16(l.Port)), protocol: l.protocol, ports: []uint16{uint16(l.Port)}}
	inFleet := m.byName[w.name] != nil
	if l.bound == nil {
		last := slices.DeleteFunc(slices.Clone(m.derived[m.derivedName(l)]), func(d *corev1.Service) bool { return !holdsOne(d, s.vips) })
		if !inFleet || len(last) != 1 || !slices.ContainsFunc(l.attachments, func(a *attachment) bool { return a.refused != "" }) {
			return w, false
		}
		w.source = types.NamespacedName{Namespace: last[0].Namespace, Name: last[0].Name} // a route that cannot be had any more goes on as it was
		w.spec, l.goesOn = &last[0].Spec, true
		m.wantedDerived[w.source] = true
		return w, true
	}
	b := l.bound.backend
	if b == nil {
		return w, false
	}
	have := m.derive(l)
	w.source, w.spec = types.NamespacedName{Namespace: b.service.Namespace, Name: b.service.Name}, &corev1.ServiceSpec{SessionAffinity: b.service.Spec.SessionAffinity}
	if have != nil {
		w.spec.HealthCheckNodePort = have.Spec.HealthCheckNodePort
	} else if inFleet && m.byName[w.name].Health.Path == healthPath { // it is made anew
		w.spec.HealthCheckNodePort = int32(m.byName[w.name].Health.Port)
	}
	if have == nil && !inFleet { // nodes would not pass connections on yet
		l.pending = cmp.Or(l.pending, "nodes wait for the Service that passes connections on to pods")
		return w, false
	}
	return w, true
}

// finishGateways collects what has become of each Gateway and each route.
func (m *mapping) finishGateways() {
	served := map[string]bool{}
	for i := range m.entries {
		if e := &m.entries[i]; e.of != nil && e.of.gateway != nil {
			served[e.Name] = true
		}
	}
	for _, g := range m.ordered {
		m.out.Gateways = append(m.out.Gateways, m.statusOf(g, served))
	}
	slices.SortFunc(m.out.Gateways, func(a, b GatewayObject) int {
		return cmp.Or(cmp.Compare(a.Gateway.Namespace, b.Gateway.Namespace), cmp.Compare(a.Gateway.Name, b.Gateway.Name))
	})
	m.finishRoutes()
}

func (m *mapping) statusOf(g *gateway, served map[string]bool) GatewayObject {
	o := GatewayObject{Gateway: g.Gateway, Status: &gw.GatewayStatus{}, Finalized: true, Services: map[string]int{}, Derived: map[string]int{}}
	accepted, programmed := g.accepted, condition(gw.GatewayConditionProgrammed, true, gw.GatewayReasonProgrammed, "")
	if u := g.unit; u != nil {
		kind := gw.IPAddressType
		for _, a := range u.vips {
			o.Status.Addresses = append(o.Status.Addresses, gw.GatewayStatusAddress{Type: &kind, Value: a.String()})
		}
		switch why := strings.Join(u.why, "; "); {
		case !u.settings.valid && accepted.Status == metav1.ConditionTrue:
			accepted = condition(gw.GatewayConditionAccepted, false, gw.GatewayReasonInvalid, why)
			programmed = condition(gw.GatewayConditionProgrammed, false, gw.GatewayReasonInvalid, why)
		case u.lacking && len(u.settings.addresses) > 0:
			programmed = condition(gw.GatewayConditionProgrammed, false, gw.GatewayReasonAddressNotUsable, why)
		case u.lacking:
			programmed = condition(gw.GatewayConditionProgrammed, false, gw.GatewayReasonAddressNotAssigned, why)
		case u.refused:
			programmed = condition(gw.GatewayConditionProgrammed, false, gw.GatewayReasonInvalid, why)
		}
	}
	if accepted.Status != metav1.ConditionTrue {
		if accepted.Message != "" && accepted.Reason != string(gw.GatewayReasonInvalid) {
			m.out.Events = append(m.out.Events, Event{g.Gateway, ReasonInvalid, accepted.Message})
		}
		programmed = condition(gw.GatewayConditionProgrammed, false, gw.GatewayReasonInvalid, accepted.Message)
	}
	o.Status.Conditions = []metav1.Condition{accepted, programmed}
	for i, l := range g.listeners {
		one := condition(gw.ListenerConditionProgrammed, true, gw.ListenerReasonProgrammed, "")
		name := m.listenerName(g.key, l.protocol, uint16(l.Port))
		switch {
		case !l.valid():
			one = condition(gw.ListenerConditionProgrammed, false, gw.ListenerReasonInvalid, l.accepted.Message)
		case len(o.Status.Addresses) == 0:
			one = condition(gw.ListenerConditionProgrammed, false, gw.ListenerReasonPending, "the Gateway has no address")
		case served[name]:
			o.Services[name] = i
		case l.bound != nil && l.bound.backend != nil:
			one = condition(gw.ListenerConditionProgrammed, false, gw.ListenerReasonPending, cmp.Or(l.pending, "the fleet does not take its service: the Gateway's Events say why"))
		}
		if l.bound != nil && l.bound.backend != nil {
			o.Derived[m.derivedName(l)] = i
		}
		if !l.valid() {
			m.out.Events = append(m.out.Events, Event{g.Gateway, ReasonListener, fmt.Sprintf("listener %s: %s", l.Name, l.accepted.Message)})
		} else if l.resolved.Status != metav1.ConditionTrue {
			m.out.Events = append(m.out.Events, Event{g.Gateway, ReasonListener, fmt.Sprintf("listener %s: %s", l.Name, l.resolved.Message)})
		}
		status := gw.ListenerStatus{Name: l.Name, SupportedKinds: l.supported, AttachedRoutes: l.attached(), Conditions: []metav1.Condition{l.accepted, l.conflicted, l.resolved, one}}
		o.Status.Listeners = append(o.Status.Listeners, status)
		observe(status.Conditions, g.Generation)
	}
	observe(o.Status.Conditions, g.Generation)
	return o
}

// Attached are how many routes listeners have, and how many listeners are not accepted or not programmed.
func (o *Output) Attached() (routes, refused int) {
	for i := range o.Gateways {
		if o.Gateways[i].Status == nil {
			continue
		}
		for _, l := range o.Gateways[i].Status.Listeners {
			if routes += int(l.AttachedRoutes); slices.ContainsFunc(l.Conditions, func(c metav1.Condition) bool {
				return c.Status != metav1.ConditionTrue && (c.Type == string(gw.ListenerConditionAccepted) || c.Type == string(gw.ListenerConditionProgrammed))
			}) {
				refused++
			}
		}
	}
	return routes, refused
}

func observe(conditions []metav1.Condition, generation int64) {
	for i := range conditions {
		conditions[i].ObservedGeneration = generation
	}
}
