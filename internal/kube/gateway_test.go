package kube

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
	"github.com/ballast-lb/ballast/internal/metricstest"
)

func pointer[T any](v T) *T { return &v }

func gatewayClass() *gw.GatewayClass {
	return &gw.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "ballast"}, Spec: gw.GatewayClassSpec{ControllerName: mapping.DefaultClass}}
}

// gateway has a listener of TCP, of UDP and of TLS at each third port, in this order.
func gateway(name string, ports ...int32) *gw.Gateway {
	g := &gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1}, Spec: gw.GatewaySpec{GatewayClassName: "ballast"}}
	for _, port := range ports {
		protocol := []gw.ProtocolType{gw.TCPProtocolType, gw.UDPProtocolType, gw.TLSProtocolType}[(port+1)%3]
		g.Spec.Listeners = append(g.Spec.Listeners, gw.Listener{Name: gw.SectionName(protocol), Port: port, Protocol: protocol})
	}
	return g
}

func parent(gateway string, port int32) gw.CommonRouteSpec {
	return gw.CommonRouteSpec{ParentRefs: []gw.ParentReference{{Name: gw.ObjectName(gateway), Port: &port}}}
}

func to(service string) []gw.BackendRef {
	return []gw.BackendRef{{BackendObjectReference: gw.BackendObjectReference{Name: gw.ObjectName(service), Port: pointer(gw.PortNumber(8000))}}}
}

func tcpRoute(name, gateway string, port int32, service string) *gw.TCPRoute {
	return &gw.TCPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: gw.TCPRouteSpec{CommonRouteSpec: parent(gateway, port), Rules: []gw.TCPRouteRule{{BackendRefs: to(service)}}}}
}

func udpRoute(name, gateway string, port int32, service string) *gw.UDPRoute {
	return &gw.UDPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: gw.UDPRouteSpec{CommonRouteSpec: parent(gateway, port), Rules: []gw.UDPRouteRule{{BackendRefs: to(service)}}}}
}

func tlsRoute(name, gateway string, port int32, service string) *gw.TLSRoute {
	return &gw.TLSRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: gw.TLSRouteSpec{CommonRouteSpec: parent(gateway, port), Hostnames: []gw.Hostname{"a.example"}, Rules: []gw.TLSRouteRule{{BackendRefs: to(service)}}}}
}

// behind is a Service that selects pods, not one of ours.
func behind(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name},
		Ports: []corev1.ServicePort{{Name: "tcp", Port: 8000, TargetPort: intstr.FromInt32(80)}, {Name: "udp", Port: 8000, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(80)}}}}
}

// installGateways has the API server know the Gateway API, and objects of it.
func (w *world) installGateways(objects ...runtime.Object) {
	var list []metav1.APIResource
	for _, name := range needed {
		list = append(list, metav1.APIResource{Name: name})
	}
	for _, object := range objects {
		resource := strings.ToLower(kindOf(object.(mapping.Referent))) + "s"
		if strings.HasSuffix(resource, "ss") {
			resource = "gatewayclasses"
		}
		fleettest.Require(w, w.gateways.Tracker().Create(schema.GroupVersion(gw.GroupVersion).WithResource(resource), object, object.(mapping.Referent).GetNamespace()))
	}
	w.resources.Store(&metav1.APIResourceList{GroupVersion: gw.GroupVersion.String(), APIResources: list})
}

// apiServer is one that has resources besides its own, which come and go while it is asked: those of the fake are for nobody to change then.
type apiServer struct {
	kubernetes.Interface
	resources *atomic.Pointer[metav1.APIResourceList]
}

// Discovery implements kubernetes.Interface.
func (a apiServer) Discovery() discovery.DiscoveryInterfaces {
	return discovered{a.Interface.Discovery(), a.resources}
}

// IsWatchListSemanticsUnSupported has informers list, as they do with the fake.
func (a apiServer) IsWatchListSemanticsUnSupported() bool { return true }

type discovered struct {
	discovery.DiscoveryInterfaces
	resources *atomic.Pointer[metav1.APIResourceList]
}

// ServerResourcesForGroupVersion implements discovery.DiscoveryInterfaces.
func (d discovered) ServerResourcesForGroupVersion(version string) (*metav1.APIResourceList, error) {
	answer, err := d.DiscoveryInterfaces.ServerResourcesForGroupVersion(version)
	if list := d.resources.Load(); apierrors.IsNotFound(err) && list != nil && list.GroupVersion == version {
		return list, nil
	}
	return answer, err
}

func (w *world) gateway(name string) *gw.Gateway {
	g, err := w.gateways.GatewayV1().Gateways("default").Get(w.Context(), name, metav1.GetOptions{})
	fleettest.Require(w, err)
	return g
}

func (w *world) tcp(name string) *gw.TCPRoute {
	r, err := w.gateways.GatewayV1().TCPRoutes("default").Get(w.Context(), name, metav1.GetOptions{})
	fleettest.Require(w, err)
	return r
}

func (w *world) udp(name string) *gw.UDPRoute {
	r, err := w.gateways.GatewayV1().UDPRoutes("default").Get(w.Context(), name, metav1.GetOptions{})
	fleettest.Require(w, err)
	return r
}

func (w *world) tls(name string) *gw.TLSRoute {
	r, err := w.gateways.GatewayV1().TLSRoutes("default").Get(w.Context(), name, metav1.GetOptions{})
	fleettest.Require(w, err)
	return r
}

func (w *world) changeTCP(name string, change func(*gw.TCPRoute)) {
	fleettest.Await(w, "the route is changed", func() bool {
		r := w.tcp(name)
		change(r)
		_, err := w.gateways.GatewayV1().TCPRoutes("default").Update(w.Context(), r, metav1.UpdateOptions{})
		return err == nil
	})
}

// selects is the app that the Service of a listener passes connections on to; empty: there is none.
func (w *world) selects(gateway string, port int32) string {
	list, err := w.client.CoreV1().Services("default").List(w.Context(), metav1.ListOptions{})
	fleettest.Require(w, err)
	for _, s := range list.Items {
		if strings.HasPrefix(s.Name, "ballast-"+gateway+"-") && s.Spec.Ports[0].Port == port {
			return s.Spec.Selector["app"]
		}
	}
	return ""
}

func holds(list []metav1.Condition, kind, reason string) bool {
	for _, c := range list {
		if c.Type == kind && c.Reason == reason && !c.LastTransitionTime.IsZero() {
			return true
		}
	}
	return false
}

func TestAGatewayIsInTheFleetUntilItIsDeleted(t *testing.T) {
	w := newWorld(t, node(1), node(2), behind("app"), slice("app", 1))
	p := w.start("a")
	p.awaitReady() // the Gateway API is installed later
	w.installGateways(gatewayClass(), gateway("edge", 80, 82), tcpRoute("app", "edge", 80, "app"))
	w.await("default:edge:tcp:80", "n1*1")
	fleettest.Await(t, "it is programmed", func() bool {
		s := w.gateway("edge").Status
		return len(s.Addresses) == 1 && s.Addresses[0].Value == "203.0.113.0" && holds(s.Conditions, "Accepted", "ListenersNotValid") && holds(s.Conditions, "Programmed", "Programmed") &&
			len(s.Listeners) == 2 && holds(s.Listeners[0].Conditions, "Programmed", "Programmed") && holds(s.Listeners[1].Conditions, "Accepted", "UnsupportedValue")
	})
	fleettest.Await(t, "the route is accepted", func() bool {
		parents := w.tcp("app").Status.Parents
		return len(parents) == 1 && holds(parents[0].Conditions, "Accepted", "Accepted") && holds(parents[0].Conditions, "ResolvedRefs", "ResolvedRefs")
	})
	fleettest.Await(t, "an Event says what cannot be had", func() bool { return w.saw(mapping.ReasonListener, "listener TLS: tls.mode Terminate") })
	w.put(slice("app", 1, 2, 2))
	w.await("default:edge:tcp:80", "n1*1 n2*2")
	fleettest.Await(t, "metrics count it", func() bool {
		_, text := p.get("/metrics")
		return strings.Contains(text, "ballast_kube_gateways 1\n") && strings.Contains(text, "ballast_kube_gateway_routes 1\n") &&
			strings.Contains(text, "ballast_kube_gateway_listeners_refused 1\n")
	})
	_, text := p.get("/metrics")
	metricstest.Check(t, text)
	fleettest.Await(t, "it is being deleted", func() bool {
		g := w.gateway("edge")
		g.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		_, err := w.gateways.GatewayV1().Gateways("default").Update(t.Context(), g, metav1.UpdateOptions{})
		return err == nil
	})
	w.await("default:edge:tcp:80", "none")
	fleettest.Await(t, "it may go", func() bool { return len(w.gateway("edge").Finalizers) == 0 && w.selects("edge", 80) == "" })
	fleettest.Await(t, "the route says nothing of it", func() bool { return len(w.tcp("app").Status.Parents) == 0 })
}

// Promise: Once nothing changes, nothing is written: not to the fleet, not to statuses.
func TestGatewaysComeToRest(t *testing.T) {
	w := newWorld(t, node(1), behind("app"), slice("app", 1))
	w.installGateways(gatewayClass(), gateway("edge", 80, 81, 85), tcpRoute("app", "edge", 80, "app"), udpRoute("app", "edge", 81, "app"))
	p := w.start("a")
	w.await("default:edge:udp:81", "n1*1")
	w.await("default:edge:tcp:80", "n1*1")
	last, passes := -1, ""
	fleettest.Await(t, "a whole pass changes nothing", func() bool {
		_, text := p.get("/metrics")
		_, now, _ := strings.Cut(text, `ballast_kube_passes_total{result="done"} `)
		now, _, _ = strings.Cut(now, "\n")
		if now == passes {
			return false
		}
		passes = now
		writes := int(w.calls.Load())
		for _, actions := range [][]clienttesting.Action{w.client.Actions(), w.gateways.Actions()} {
			for _, a := range actions {
				if a.GetVerb() == "patch" || a.GetVerb() == "update" && a.GetResource().Resource == "services" || a.GetVerb() == "create" && a.GetResource().Resource == "services" {
					writes++
				}
			}
		}
		rest := writes == last
		last = writes
		return rest
	})
}

// Promise: A namespace that takes no more Services holds up no other Gateway, and the Gateway says why.
func TestAServiceThatTheClusterRefusesHoldsUpNoOther(t *testing.T) {
	w := newWorld(t, node(1), behind("app"), slice("app", 1))
	w.installGateways(gatewayClass(), gateway("full", 80), gateway("edge", 80), tcpRoute("app", "edge", 80, "app"), tcpRoute("full", "full", 80, "app"))
	var let atomic.Bool
	w.client.PrependReactor("create", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s := action.(clienttesting.CreateAction).GetObject().(*corev1.Service)
		if !let.Load() && strings.HasPrefix(s.Name, "ballast-full-") {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, s.Name, errors.New("exceeded quota"))
		}
		return false, nil, nil
	})
	p := w.start("a")
	w.await("default:edge:tcp:80", "n1*1")
	fleettest.Await(t, "the listener says why", func() bool {
		s := w.gateway("full").Status
		return len(s.Listeners) == 1 && holds(s.Listeners[0].Conditions, "Programmed", "Pending") && strings.Contains(s.Listeners[0].Conditions[3].Message, "exceeded quota") &&
			w.saw(mapping.ReasonListener, "exceeded quota")
	})
	if _, text := p.get("/metrics"); !strings.Contains(text, `ballast_kube_passes_total{result="failed"} 0`) {
		t.Error("passes fail")
	}
	let.Store(true)
	w.await("default:full:tcp:80", "n1*1")
}

// What controllers refuse is said at the listener.
func TestAListenerThatControllersRefuse(t *testing.T) {
	w := newWorld(t, node(1), behind("app"), slice("app", 1))
	w.installGateways(gatewayClass(), gateway("edge", 80), tcpRoute("app", "edge", 80, "app"))
	refuse := func(r *ballastv1.ApplyServicesRequest) error {
		if len(r.Services) > 0 {
			return wire(connect.CodeInvalidArgument, "services.default:edge:tcp:80.vip: it is the address of lb1")
		}
		return nil
	}
	w.refuse.Store(&refuse)
	w.start("a")
	fleettest.Await(t, "the listener says why", func() bool {
		s := w.gateway("edge").Status
		return len(s.Listeners) == 1 && strings.Contains(s.Listeners[0].Conditions[3].Message, "it is the address of lb1") && w.saw(reasonRefused, "it is the address of lb1")
	})
}

// Promise: A cluster that has the Gateway API for others, and an account that may not watch it, serve Services as ever.
func TestServicesDoNotWaitForGatewaysThatMayNotBeWatched(t *testing.T) {
	w := newWorld(t, node(1), service("web"), slice("web", 1))
	w.installGateways(gatewayClass(), gateway("edge", 80))
	var let atomic.Bool
	w.gateways.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if let.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("no role"))
	})
	p := w.start("a")
	w.await("default:web:tcp", "n1*1")
	p.awaitReady()
	if len(w.gateway("edge").Finalizers) > 0 {
		t.Error("the Gateway is changed")
	}
	let.Store(true)
	fleettest.Await(t, "the Gateway is served", func() bool { return len(w.gateway("edge").Status.Addresses) > 0 })
}

// Promise: While nobody says whether there are Gateways, nothing changes; once they are gone, Services go on and what Gateways had stays.
func TestTheGatewayAPIComesAndGoes(t *testing.T) {
	w := newWorld(t, node(1), behind("app"), slice("app", 1))
	var silent atomic.Bool
	silent.Store(true)
	w.client.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		if silent.Load() {
			return true, nil, errors.New("no route to host")
		}
		return false, nil, nil
	})
	w.installGateways(gatewayClass(), gateway("edge", 80), tcpRoute("app", "edge", 80, "app"))
	p := w.start("a")
	fleettest.Await(t, "it is not ready", func() bool {
		status, text := p.get("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "does not say whether it has the Gateway API: no route to host")
	})
	silent.Store(false)
	w.await("default:edge:tcp:80", "n1*1")
	p.awaitReady()
	w.resources.Store(&metav1.APIResourceList{GroupVersion: gw.GroupVersion.String(), APIResources: []metav1.APIResource{{Name: "gateways"}}})
	fleettest.Await(t, "metrics say that they are gone", func() bool {
		_, text := p.get("/metrics")
		return !strings.Contains(text, "ballast_kube_gateways ")
	})
	_, err := w.client.CoreV1().Services("default").Create(t.Context(), service("web"), metav1.CreateOptions{})
	fleettest.Require(t, err)
	w.await("default:web:tcp", "")
	if w.servers("default:edge:tcp:80") != "n1*1" || w.selects("edge", 80) != "app" {
		t.Error("what the Gateway had is gone")
	}
	p.awaitReady()
}
