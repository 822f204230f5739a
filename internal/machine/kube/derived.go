package kube

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ballast-lb/ballast/internal/model"
)

// Nodes pass connections on to pods by kube-proxy's rules, and kube-proxy knows the addresses of Services alone. So each listener with a backend
// has a Service of its own beside the backend, with the same selector, the listener's port and the Gateway's address. The cluster keeps its
// endpoints, also while this program does not run.

const (
	derivedLabel      = "app.kubernetes.io/managed-by"
	derivedBy         = "ballast-kube"
	derivedAnnotation = AnnotationPrefix + "listener" // NAMESPACE/GATEWAY/tcp/80
)

// DerivedClass is the load balancer class of the Services that listeners have: nobody else takes these.
func (o *Options) DerivedClass() string { return o.Class + "-gateway" }

// Derived is what should be of the Service of a listener.
type Derived struct {
	Have    *corev1.Service // nil: it is to be made
	Want    *corev1.Service
	Gateway types.NamespacedName
}

func identity(l *listener) string {
	return fmt.Sprintf("%s/%s/%s/%d", l.of.Namespace, l.of.Name, lower(l.protocol), l.Port)
}

func (m *mapping) derivedName(l *listener) string { return m.derivedNameOf(identity(l)) }

// derivedNameOf is a name that Services can have, and that tells people which listener it is of.
func (o *Options) derivedNameOf(identity string) string {
	hash := sha256.Sum256([]byte(o.Class + " " + identity))
	parts := strings.Split(identity, "/")
	const digits, readable = 8, 35
	name := strings.ReplaceAll(parts[min(1, len(parts)-1)], ".", "-")
	return fmt.Sprintf("ballast-%s-%s-%s", name[:min(len(name), readable)], parts[len(parts)-1], hex.EncodeToString(hash[:])[:digits])
}

// isDerived reports whether a Service was made for a listener, by this program: one that only looks so has another name.
func (o *Options) isDerived(s *corev1.Service) bool {
	return s.Spec.LoadBalancerClass != nil && *s.Spec.LoadBalancerClass == o.DerivedClass() && s.Labels[derivedLabel] == derivedBy &&
		o.derivedNameOf(s.Annotations[derivedAnnotation]) == s.Name
}

// findDerived indexes the Services of listeners by name: they are in the namespaces of backends.
func (m *mapping) findDerived() {
	for _, s := range m.in.Services {
		if m.isDerived(s) {
			m.derived[s.Name] = append(m.derived[s.Name], s)
			if parts := strings.Split(s.Annotations[derivedAnnotation], "/"); len(parts) > 1 {
				key := types.NamespacedName{Namespace: parts[0], Name: parts[1]}
				m.derivedOfGateway[key] = append(m.derivedOfGateway[key], s)
			}
		}
	}
}

// derive says what should be of a listener's Service, and returns it if nodes have it with its address.
func (m *mapping) derive(l *listener) *corev1.Service {
	b, vips := l.bound.backend, l.of.unit.vips
	for _, a := range vips {
		family := corev1.IPv6Protocol
		if a.Is4() {
			family = corev1.IPv4Protocol
		}
		if len(b.service.Spec.IPFamilies) > 0 && !slices.Contains(b.service.Spec.IPFamilies, family) {
			m.hinders(l, fmt.Sprintf("Service %s has no %s (spec.ipFamilies), and %s is an address of the Gateway", b.service.Name, family, a))
			return nil
		}
	}
	want := m.derivedOf(l, b, vips)
	key := types.NamespacedName{Namespace: want.Namespace, Name: want.Name}
	m.wantedDerived[key] = true
	have := m.cluster.services[key]
	if have != nil && !m.isDerived(have) {
		m.hinders(l, fmt.Sprintf("Service %s is in the way of the one that the listener needs: delete it", key))
		return nil
	}
	if have != nil && len(want.Spec.IPFamilies) > 0 && !slices.Equal(have.Spec.IPFamilies, want.Spec.IPFamilies) { // cannot be changed
		delete(m.wantedDerived, key)
		return nil
	}
	for _, other := range m.derived[want.Name] { // kube-proxy wants an address and port once: that of another namespace goes first
		if other.Namespace != want.Namespace && holdsOne(other, vips) || other.Namespace == want.Namespace && other.DeletionTimestamp != nil {
			l.pending = fmt.Sprintf("Service %s/%s goes first", other.Namespace, other.Name)
			return nil
		}
	}
	if have == nil || !derivedEqual(have, want) || !slices.Equal(Ingress(have), vips) {
		m.out.Derived = append(m.out.Derived, Derived{Have: have, Want: want, Gateway: l.of.key})
		if have == nil || !slices.Equal(Ingress(have), vips) {
			return nil
		}
	}
	return have
}

// holdsOne reports whether a Service has one of these addresses. Everybody can make one that looks like a listener's, in a namespace of theirs; none but
// this program writes addresses into its status.
func holdsOne(s *corev1.Service, vips []netip.Addr) bool {
	return slices.ContainsFunc(Ingress(s), func(a netip.Addr) bool { return slices.Contains(vips, a) })
}

// hinders notes what keeps nodes from passing connections on.
func (m *mapping) hinders(l *listener, why string) {
	l.pending = why
	m.out.Events = append(m.out.Events, Event{l.of.Gateway, ReasonListener, fmt.Sprintf("listener %s: %s", l.Name, why)})
}

func (m *mapping) derivedOf(l *listener, b *backend, vips []netip.Addr) *corev1.Service {
	class, allocate, mode := m.DerivedClass(), false, corev1.LoadBalancerIPModeVIP
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.service.Namespace, Name: m.derivedName(l), Labels: map[string]string{derivedLabel: derivedBy},
			Annotations: map[string]string{derivedAnnotation: identity(l)}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, AllocateLoadBalancerNodePorts: &allocate, Selector: b.service.Spec.Selector,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, SessionAffinity: b.service.Spec.SessionAffinity, SessionAffinityConfig: b.service.Spec.SessionAffinityConfig,
			PublishNotReadyAddresses: b.service.Spec.PublishNotReadyAddresses, IPFamilies: b.service.Spec.IPFamilies, IPFamilyPolicy: b.service.Spec.IPFamilyPolicy,
			Ports: []corev1.ServicePort{{Name: b.port.Name, Port: l.Port, Protocol: b.port.Protocol, TargetPort: b.port.TargetPort}}},
	}
	if s.Spec.Ports[0].TargetPort.String() == "0" {
		s.Spec.Ports[0].TargetPort.IntVal = b.port.Port
	}
	for _, a := range vips {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
	}
	return s
}

// derivedEqual reports whether a Service passes connections on as it should.
func derivedEqual(have, want *corev1.Service) bool {
	affinity := func(s *corev1.Service) corev1.ServiceAffinity {
		return cmp.Or(s.Spec.SessionAffinity, corev1.ServiceAffinityNone)
	}
	return maps.Equal(have.Spec.Selector, want.Spec.Selector) && len(have.Spec.Ports) == 1 && have.Spec.Ports[0].Name == want.Spec.Ports[0].Name &&
		have.Spec.Ports[0].Port == want.Spec.Ports[0].Port && protocolOf(&have.Spec.Ports[0]) == protocolOf(&want.Spec.Ports[0]) &&
		have.Spec.Ports[0].TargetPort == want.Spec.Ports[0].TargetPort && have.Spec.Type == want.Spec.Type && have.Spec.ExternalTrafficPolicy == want.Spec.ExternalTrafficPolicy &&
		affinity(have) == affinity(want) && have.Spec.PublishNotReadyAddresses == want.Spec.PublishNotReadyAddresses
}

// Changed is a Service of a listener with what it should have, ready to be written.
func (d *Derived) Changed() *corev1.Service {
	s := d.Have.DeepCopy()
	s.Spec.Selector, s.Spec.Ports, s.Spec.Type, s.Spec.ExternalTrafficPolicy = d.Want.Spec.Selector, d.Want.Spec.Ports, d.Want.Spec.Type, d.Want.Spec.ExternalTrafficPolicy
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = d.Want.Spec.SessionAffinity, d.Want.Spec.SessionAffinityConfig
	s.Spec.PublishNotReadyAddresses = d.Want.Spec.PublishNotReadyAddresses
	return s
}

// Unchanged reports whether only the addresses of a Service of a listener are to be written.
func (d *Derived) Unchanged() bool { return d.Have != nil && derivedEqual(d.Have, d.Want) }

// Ingress are the addresses in a Service's status; what else is there is one that is not valid.
func Ingress(s *corev1.Service) (list []netip.Addr) {
	for _, i := range s.Status.LoadBalancer.Ingress {
		a, _ := netip.ParseAddr(i.IP)
		list = append(list, a)
	}
	return list
}

// findExcess finds Services of listeners that are no more.
func (m *mapping) findExcess() {
	for _, list := range m.derived {
		for _, s := range list {
			if !m.wantedDerived[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] && s.DeletionTimestamp == nil {
				m.out.Excess = append(m.out.Excess, s)
			}
		}
	}
	slices.SortFunc(m.out.Excess, func(a, b *corev1.Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// isListenerName reports whether a service of the fleet is a listener's.
func isListenerName(name string) bool {
	rest, port, found := cutLast(name)
	_, protocol, also := cutLast(rest)
	return found && also && strings.Trim(port, "0123456789") == "" && port != "" && slices.ContainsFunc(protocols, func(p model.Protocol) bool { return lower(p) == protocol })
}

func cutLast(text string) (before, after string, found bool) {
	i := strings.LastIndex(text, ":")
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+1:], true
}
