// Package kube maps objects of Kubernetes onto services of a fleet: Services of a load balancer class are services, and so are listeners of Gateways
// with a route; nodes with ready endpoints are their servers.
//
// It is pure: what a cluster has and what the fleet has now go in, what both should have comes out. Nothing is remembered in between.
package kube

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ballast-lb/ballast/internal/model"
)

const (
	// DefaultClass is the load balancer class that is ours unless another one is chosen.
	DefaultClass = "ballast.io/l4"
	// AnnotationPrefix begins our annotations.
	AnnotationPrefix = "ballast.io/"
)

// Options are what an operator chooses.
type Options struct {
	Class  string // spec.loadBalancerClass of our Services, and spec.controllerName of our GatewayClasses
	Owner  string // of services in the fleet: the name of our certificate
	Prefix string // before the names of services, for clusters that share a fleet; may be empty
	Pools  []Pool // in the order in which they are used
}

// Input is a cluster and a fleet, as they are. Nothing of it is changed.
type Input struct {
	Services  []*corev1.Service
	Gateways  Gateways
	Slices    []*discoveryv1.EndpointSlice
	Nodes     []*corev1.Node
	Fleet     []model.Service // of all owners
	Balancers []model.Node    // of the fleet
}

// Output is what should be.
type Output struct {
	// Services are all that the owner has in the fleet. Ids are not given: the fleet keeps those of servers at the same address.
	Services []model.Service
	// Objects are the Services that are ours, or were, by namespace and name.
	Objects  []Object
	Gateways []GatewayObject // that are ours, or were, by namespace and name
	Classes  []ClassObject   // that are ours, by name
	Routes   []RouteObject   // that name a Gateway of ours, or did, the oldest first
	// Derived are Services of listeners that are not as they should be, Excess those of listeners that are no more.
	Derived []Derived
	Excess  []*corev1.Service
	Events  []Event
	// Refused are how many Services and Gateways are not in the fleet as they are wanted; an Event of each says why.
	Refused int
	// Kept are the names of services of the fleet whose servers are kept because no endpoint is known.
	Kept []string
	// Vanished are the names of services of the fleet that are kept although their Services are gone: all are, which is more likely a mistake.
	Vanished []string
	Pools    []PoolUse
}

// Object is what should be of one Service.
type Object struct {
	Service *corev1.Service
	// Addresses are those of status.loadBalancer.ingress, once the fleet has Names; nil: it should have none.
	Addresses []netip.Addr
	// Names are its services in the fleet.
	Names []string
	// Finalized reports whether the Service should have our finalizer, which it gets before the fleet has its services, and loses once the fleet
	// has none.
	Finalized bool
}

// Referent is an object of the cluster.
type Referent interface {
	runtime.Object
	metav1.Object
}

// Event is a warning that people see at an object.
type Event struct {
	Object  Referent
	Reason  string
	Message string
}

// Reasons of events.
const (
	ReasonInvalid   = "Invalid"       // a field or an annotation cannot be had
	ReasonPolicy    = "TrafficPolicy" // externalTrafficPolicy: Cluster
	ReasonNoAddress = "NoAddress"     // no pool has a free one, or the requested one cannot be had
	ReasonKept      = "ServersKept"   // no endpoint is known
	ReasonNode      = "Node"          // a node cannot be a server
	ReasonExcluded  = "NodesExcluded" // no node is left that takes new connections
	ReasonNoRoom    = "NoRoom"        // the fleet is full
	ReasonPort      = "Port"          // a port has another protocol than TCP and UDP
	ReasonListener  = "Listener"      // of a Gateway cannot be had
	ReasonRoute     = "Route"         // a route gets no connections, or not all
	ReasonBackend   = "Backend"       // of a route cannot be had
	ReasonClass     = "Class"         // of a Gateway is gone
)

// ours is what is made of one Service, or of one Gateway: then Service is none of the cluster.
type ours struct {
	*corev1.Service
	gateway  *gateway // nil: it is a Service
	key      types.NamespacedName
	settings settings
	before   []*model.Service // in the fleet, ours
	held     []netip.Addr     // that it has: in the fleet, else by status
	inFleet  bool             // held are of the fleet
	vips     []netip.Addr
	fallback bool // what is wanted is refused: it goes on with the settings that the fleet has
	refused  bool
	lacking  bool             // an address that it wants
	why      []string         // it is refused
	ports    map[portKey]bool // once somebody has asked
}

// object is what people see Events at.
func (s *ours) object() Referent {
	if s.gateway != nil {
		return s.gateway.Gateway
	}
	return s.Service
}

func (s *ours) kind() string {
	if s.gateway != nil {
		return "Gateway"
	}
	return "Service"
}

func (o *Options) isOurs(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass != nil && *s.Spec.LoadBalancerClass == o.Class
}

// Finalizer is what keeps a Service or a Gateway until its services have left the fleet, so that every deletion is seen: the class.
func (o *Options) Finalizer() string { return o.Class }

// HasFinalizer reports whether a Service or a Gateway waits for us.
func (o *Options) HasFinalizer(object metav1.Object) bool {
	return slices.Contains(object.GetFinalizers(), o.Finalizer())
}

// Map decides what should be.
func Map(o Options, in Input) Output {
	m := &mapping{Options: o, in: in, byName: map[string]*model.Service{}, wantedDerived: map[types.NamespacedName]bool{}, derived: map[string][]*corev1.Service{},
		derivedOfGateway: map[types.NamespacedName][]*corev1.Service{}, listenerServices: map[string][]string{}, gateways: map[types.NamespacedName]*gateway{}}
	for i := range in.Fleet {
		m.byName[in.Fleet[i].Name] = &in.Fleet[i]
	}
	m.index()
	for _, s := range in.Services {
		switch {
		case o.isOurs(s) && s.DeletionTimestamp == nil:
			m.add(s)
		case o.HasFinalizer(s):
			m.out.Objects = append(m.out.Objects, Object{Service: s})
			m.released = true
		}
	}
	m.findDerived()
	for i := range in.Fleet {
		if s := &in.Fleet[i]; s.Owner == o.Owner && isListenerName(s.Name) {
			head, _, _ := cutLast(s.Name)
			m.listenerServices[head] = append(m.listenerServices[head], s.Name)
		}
	}
	m.findGateways()
	m.findRoutes()
	slices.SortFunc(m.services, func(a, b *ours) int {
		return cmp.Or(-cmp.Compare(len(a.before), len(b.before)), -cmp.Compare(len(a.held), len(b.held)), a.CreationTimestamp.Time.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name), cmp.Compare(a.kind(), b.kind()))
	})
	m.keepVanished()
	m.allocate()
	for _, s := range m.services {
		if s.gateway != nil {
			m.buildGateway(s)
		} else {
			m.build(s)
		}
	}
	m.limit()
	m.contradictions()
	m.finishGateways()
	return m.finish()
}

type mapping struct {
	Options
	in       Input
	services []*ours
	byName   map[string]*model.Service // in the fleet
	released bool                      // a Service is being deleted, or is ours no more
	cluster  cluster

	gateways         map[types.NamespacedName]*gateway
	ordered          []*gateway
	releasedGateway  bool                                       // as released
	routes           []*route                                   // the oldest first
	derived          map[string][]*corev1.Service               // of listeners, as the cluster has them, by name
	derivedOfGateway map[types.NamespacedName][]*corev1.Service // the same by their Gateway
	listenerServices map[string][]string                        // in the fleet, ours, by their names without the port
	wantedDerived    map[types.NamespacedName]bool
	keepsDerived     bool // all: Gateways are gone, and none was deleted

	taken map[netip.Addr][]holder
	hosts map[netip.Addr]string // whose addresses no Service gets, for people
	// balancers are those of hosts that no server's address may be: load balancers would steer what they send there once more.
	balancers map[netip.Addr]string
	sharing   map[string][]netip.Addr // addresses by sharing key
	entries   []entry
	out       Output
}

// entry is one service of the fleet that is made, and of whom.
type entry struct {
	model.Service
	of     *ours
	before *model.Service
	form   form
}

func (m *mapping) add(s *corev1.Service) {
	one := &ours{Service: s, key: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}}
	for _, protocol := range protocols {
		if before := m.byName[m.name(one.key, protocol)]; before != nil && before.Owner == m.Owner {
			one.before = append(one.before, before)
		}
	}
	one.held, one.inFleet = m.addressesHeld(one)
	m.services = append(m.services, one)
}

// event notes what people should know.
func (m *mapping) event(s *ours, reason, message string) {
	m.out.Events = append(m.out.Events, Event{s.object(), reason, message})
}

// refuse is event, for a Service or a Gateway that the fleet does not get as it is wanted.
func (m *mapping) refuse(s *ours, reason, message string) {
	if !slices.Contains(s.why, message) {
		m.event(s, reason, message)
		s.why = append(s.why, message)
	}
	if !s.refused {
		s.refused = true
		m.out.Refused++
	}
}

// keepVanished keeps the services of the fleet when all Services of ours are gone at once, without one of them being deleted: finalizers
// show every deletion. Where others are left, those that are gone were deleted while nobody looked. It is the same of Gateways, which nobody knows
// while the API server does not have them.
func (m *mapping) keepVanished() {
	gateways := len(m.ordered)
	services := len(m.services) - len(slices.DeleteFunc(slices.Clone(m.services), func(s *ours) bool { return s.gateway == nil }))
	keepServices, keepGateways := services == 0 && !m.released, gateways == 0 && !m.releasedGateway || len(m.in.Services) == 0
	for i := range m.in.Fleet {
		s := &m.in.Fleet[i]
		if s.Owner != m.Owner || isListenerName(s.Name) && !keepGateways || !isListenerName(s.Name) && !keepServices {
			continue
		}
		m.entries = append(m.entries, entry{Service: s.Clone(), before: s, form: earlier})
		if m.out.Vanished = append(m.out.Vanished, s.Name); isListenerName(s.Name) { // and nodes go on to pass connections on
			m.keepsDerived = true
		}
	}
}

// finish collects what has become of each Service.
func (m *mapping) finish() Output {
	named := map[*ours][]string{}
	addresses := map[*ours][]netip.Addr{}
	for i := range m.entries {
		e := &m.entries[i]
		for j := range e.Servers {
			e.Servers[j].ID = 0
		}
		e.Owner = m.Owner
		m.out.Services = append(m.out.Services, e.Service)
		if e.of != nil {
			named[e.of] = append(named[e.of], e.Name)
			addresses[e.of] = e.VIPs()
		}
	}
	if m.in.Gateways.Known && !m.keepsDerived {
		m.findExcess()
	}
	for _, s := range m.services {
		if s.gateway != nil {
			continue
		}
		m.out.Objects = append(m.out.Objects, Object{Service: s.Service, Names: named[s], Addresses: addresses[s], Finalized: len(named[s]) > 0})
	}
	slices.SortFunc(m.out.Services, func(a, b model.Service) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(m.out.Objects, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Service.Namespace, b.Service.Namespace), cmp.Compare(a.Service.Name, b.Service.Name))
	})
	slices.SortStableFunc(m.out.Events, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.Object.GetNamespace(), b.Object.GetNamespace()), cmp.Compare(a.Object.GetName(), b.Object.GetName()), cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Message, b.Message))
	})
	m.out.Events = slices.Compact(m.out.Events)
	slices.Sort(m.out.Kept)
	m.out.Kept = slices.Compact(m.out.Kept)
	m.out.Pools = m.use()
	return m.out
}
