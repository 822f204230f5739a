package kube

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"
)

// Somebody with rights on Services, Gateways and routes of a namespace, evil, and no others, wants what is of namespace default.

// forged is a Service that looks as if it was made for listener tcp/80 of Gateway edge. It stays when it is deleted, as its maker has a finalizer on it.
func forged(deleted bool) *corev1.Service {
	o := Options{Class: DefaultClass}
	class := o.DerivedClass()
	s := behind(o.derivedNameOf("default/edge/tcp/80"))
	s.Namespace, s.Finalizers = "evil", []string{"evil.example.com/stay"}
	s.Labels, s.Annotations = map[string]string{derivedLabel: derivedBy}, map[string]string{derivedAnnotation: "default/edge/tcp/80"}
	s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, &class
	if deleted {
		s.DeletionTimestamp = &metav1.Time{Time: began}
	}
	return s
}

// Promise: A Service that somebody makes to look like that of another namespace's listener neither holds this listener up nor gets its connections,
// and its Gateway can be deleted.
func TestAForgedServiceOfAListenerChangesNothing(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		t.Run(fmt.Sprint(deleted), func(t *testing.T) {
			in := gated(func(in *Input) { in.Services = append(in.Services, forged(deleted)) })
			var o Output
			for range 4 { // it is made again, or does not go
				o = Map(options(t), in)
				write(&in, &o)
				in.Services = slices.DeleteFunc(in.Services, func(s *corev1.Service) bool { return s.Namespace == "evil" })
				in.Services = append(in.Services, forged(deleted))
			}
			if len(o.Services) != 1 || len(o.Services[0].Servers) != 1 {
				t.Errorf("services are %+v: %+v", o.Services, o.Gateways[0].Status)
			}
			// the backend gets another port for pods
			in.Services[0] = behind("web", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort.IntVal = 9090 })
			if o = Map(options(t), in); len(o.Derived) != 1 || o.Derived[0].Want.Namespace != "default" {
				t.Errorf("the listener's Service is not changed: %+v", o.Derived)
			}
			write(&in, &o)
			// the real one is gone, and the route is refused
			in.Services = []*corev1.Service{in.Services[0], forged(deleted)}
			in.Gateways.TCPRoutes[0].Spec.Rules[0].BackendRefs = refs("web*1", "other*1")
			if o = Map(options(t), in); len(o.Services) != 0 {
				t.Errorf("the listener goes on with %+v", o.Services[0].Servers)
			}
			write(&in, &o)
			in.Gateways.Gateways[0].DeletionTimestamp = &metav1.Time{Time: began}
			if o = Map(options(t), in); len(o.Gateways) != 1 || o.Gateways[0].Finalized {
				t.Errorf("the Gateway cannot be deleted: %+v", o.Gateways)
			}
		})
	}
}

// Promise: Conditions are as short as the API server takes them, whatever an object's names are: what it refuses is never tried again and again.
func TestMessagesOfConditionsAreShort(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	in := gated()
	g := edge("edge")
	for i := range 64 {
		g.Spec.Listeners = append(g.Spec.Listeners, gw.Listener{Name: gw.SectionName(fmt.Sprint(long(250), i)), Protocol: gw.TLSProtocolType, Port: gw.PortNumber(1000 + i),
			TLS: &gw.ListenerTLSConfig{Mode: pointer(gw.TLSModePassthrough)}})
	}
	in.Gateways.Gateways = []*gw.Gateway{g}
	in.Services = append(in.Services, behind("other"))
	in.Gateways.TCPRoutes = nil
	in.Gateways.TLSRoutes = []*gw.TLSRoute{tlsRoute(long(250), "edge", "a.example.com", "web", 2), tlsRoute("younger", "edge", "b.example.com", "other", 1)}
	o := Map(options(t), in)
	for _, r := range o.Routes {
		for _, c := range r.Parents[0].Conditions {
			if len(c.Message) > maxMessage+4 {
				t.Errorf("%s of a route has a message of %d bytes", c.Type, len(c.Message))
			}
		}
	}
	if len(o.Routes) != 2 {
		t.Errorf("%d routes", len(o.Routes))
	}
}

// Promise: Services of one address with hundreds of ports each do not hold all others up.
func TestManyPortsOfOneAddressAreQuick(t *testing.T) {
	var in Input
	for i := range 100 {
		var list []corev1.ServicePort
		for p := range 600 {
			list = append(list, corev1.ServicePort{Port: int32(1 + i*600 + p), Protocol: corev1.ProtocolTCP})
		}
		in.Services = append(in.Services, service(fmt.Sprint("s", i), ports(list...), annotated("sharing-key", "k"), younger(i)))
	}
	begun := cpuTime(t)
	o := Map(options(t), in)
	if took := cpuTime(t) - begun; took > 5*time.Second {
		t.Errorf("it takes %v of CPU time", took)
	}
	if len(o.Services) == 0 {
		t.Error("none is served")
	}
}

// cpuTime is what this process has used.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Promise: Who knows the sharing key of another namespace's Service gets no port of its address; Services that share one already keep it.
func TestNamespacesDoNotShareAddresses(t *testing.T) {
	evil := service("evil", younger(1), port(81), annotated("sharing-key", "x"), func(s *corev1.Service) { s.Namespace = "evil" })
	requests := service("requests", younger(2), port(82), annotated("sharing-key", "x"), annotated("vip", "203.0.113.0"), func(s *corev1.Service) { s.Namespace = "evil" })
	in := Input{Services: []*corev1.Service{service("a", annotated("sharing-key", "x")), evil, requests}}
	o := Map(options(t), in)
	if have := addresses(o, "a") + " " + addressOf(o, "evil", "evil") + " " + addressOf(o, "evil", "requests"); have != "203.0.113.0 203.0.113.1 " {
		t.Errorf("have %q: %q", have, events(o))
	}
	in.Fleet = after(o)
	for i := range in.Fleet {
		in.Fleet[i].VIP = in.Fleet[0].VIP
	}
	if o = Map(options(t), in); addressOf(o, "evil", "evil") != addresses(o, "a") {
		t.Errorf("have %q: %q", addressOf(o, "evil", "evil"), events(o))
	}
}

func addressOf(o Output, namespace, name string) string {
	for _, object := range o.Objects {
		if object.Service.Namespace == namespace && object.Service.Name == name && len(object.Addresses) > 0 {
			return object.Addresses[0].String()
		}
	}
	return ""
}
