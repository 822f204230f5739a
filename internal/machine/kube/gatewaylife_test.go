package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/ballast-lb/ballast/internal/model"
)

func TestAGatewayThatIsDeletedLeavesNothing(t *testing.T) {
	for name, change := range map[string]func(*Input){
		"deleted":       func(in *Input) { in.Gateways.Gateways[0].DeletionTimestamp = pointer(metav1.NewTime(began)) },
		"another class": func(in *Input) { in.Gateways.Gateways[0].Spec.GatewayClassName = "other" },
		"class of another controller": func(in *Input) {
			in.Gateways.Classes[0].Spec.ControllerName = "example.com/other"
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := gated(func(in *Input) { in.Gateways.Gateways[0].Name = strings.Repeat("long", 20) })
			in.Gateways.TCPRoutes[0].Spec.ParentRefs[0].Name = gw.ObjectName(in.Gateways.Gateways[0].Name)
			settled(t, &in)
			in.Gateways.Gateways[0] = in.Gateways.Gateways[0].DeepCopy()
			change(&in)
			o := Map(options(t), in)
			g := &o.Gateways[0]
			if len(o.Services) != 0 || len(o.Excess) != 1 || g.Status != nil || !g.Finalized || len(g.Services) != 1 || len(o.Routes[0].Parents) != 0 {
				t.Fatalf("first, have %+v", o)
			}
			write(&in, &o)
			if o = Map(options(t), in); o.Gateways[0].Finalized || len(o.Gateways[0].Services) != 0 || len(in.Services) != 1 || len(o.Routes) != 0 {
				t.Errorf("then, have %+v", o.Gateways)
			}
		})
	}
}

// Promise: A Gateway whose class is deleted goes on; one that was never ours stays nobody's.
func TestAGatewayOutlivesItsClass(t *testing.T) {
	in := gated()
	settled(t, &in)
	in.Gateways.Classes = in.Gateways.Classes[1:]
	stranger := edge("stranger", "tcp/80")
	stranger.Finalizers = nil
	in.Gateways.Gateways = append(in.Gateways.Gateways, stranger)
	o := settled(t, &in)
	if len(o.Services) != 1 || len(o.Gateways) != 1 || !strings.Contains(strings.Join(events(o), "\n"), "edge Class: GatewayClass ballast is gone") {
		t.Errorf("have %+v, events %q", o.Services, events(o))
	}
}

// Promise: Neither the loss of the Gateway API, nor that of all Gateways without a deletion, nor a cluster that seems empty takes a service from
// the fleet, a rule from a node, or gives an address to another.
func TestGatewaysThatVanishStay(t *testing.T) {
	for name, change := range map[string]func(*Input){
		"the API":      func(in *Input) { in.Gateways = Gateways{} },
		"all Gateways": func(in *Input) { in.Gateways.Gateways = nil },
	} {
		t.Run(name, func(t *testing.T) {
			in := gated()
			settled(t, &in)
			change(&in)
			in.Services = append(in.Services, service("new"))
			o := Map(options(t), in)
			if find(t, o, "default:edge:tcp:80").Where() != "203.0.113.0" || addresses(o, "new") != "203.0.113.1" || len(o.Excess) > 0 || len(o.Vanished) != 1 {
				t.Errorf("have %+v", o)
			}
		})
	}
	in := gated()
	settled(t, &in)
	in.Services, in.Slices = nil, nil
	o := Map(options(t), in)
	if serversText(find(t, o, "default:edge:tcp:80")) != "n1=10.0.0.1*1 active" || gatewayOf(t, o, "edge").Status.Addresses[0].Value != "203.0.113.0" {
		t.Errorf("have %+v", o.Services)
	}
}

// Promise: An empty source takes away no last server of a listener's service.
func TestTheLastServersOfAListenerStay(t *testing.T) {
	in := gated()
	settled(t, &in)
	in.Slices = nil
	o := Map(options(t), in)
	if serversText(find(t, o, "default:edge:tcp:80")) != "n1=10.0.0.1*1 active" || !strings.Contains(strings.Join(events(o), "\n"), "edge ServersKept") {
		t.Errorf("have %+v, events %q", o.Services, events(o))
	}
}

// Promise: A route that is changed into one that cannot be had breaks nothing: its listener goes on with the backend that it had.
func TestARouteThatIsRefusedGoesOnWithItsLastBackend(t *testing.T) {
	in := gated()
	settled(t, &in)
	in.Gateways.TCPRoutes[0].Spec.Rules[0].BackendRefs = refs("web", "mail")
	derived := in.Services[1]
	in.Slices = append(in.Slices, slice(derived.Name, endpoint(1, "10.9.0.1", "ready"), endpoint(2, "10.9.0.2", "ready"))) // the cluster keeps them
	o := Map(options(t), in)
	if have := serversText(find(t, o, "default:edge:tcp:80")); have != "n1=10.0.0.1*1 active, n2=10.0.0.2*1 active" || len(o.Excess) > 0 || find(t, o, "default:edge:tcp:80").Health.Port != 31080 {
		t.Errorf("have %s", have)
	}
	if routeText(o, "web") != "!Accepted UnsupportedValue, !ResolvedRefs BackendNotFound" {
		t.Errorf("have %s", routeText(o, "web"))
	}
	in.Gateways.TCPRoutes = nil
	if o = Map(options(t), in); len(o.Services) != 0 || len(o.Excess) != 1 {
		t.Errorf("without the route, have %+v", o.Services)
	}
}

// Promise: A grant that is taken back ends the connections' way at once.
func TestAGrantThatIsTakenBackCounts(t *testing.T) {
	in := gated(func(in *Input) {
		in.Gateways.TCPRoutes[0].Namespace = "apps"
		in.Gateways.TCPRoutes[0].Spec.Rules[0].BackendRefs[0].Namespace = pointer(gw.Namespace("default"))
		in.Gateways.Gateways[0].Spec.Listeners[0].AllowedRoutes = &gw.AllowedRoutes{Namespaces: &gw.RouteNamespaces{From: pointer(gw.NamespacesFromAll)}}
		in.Gateways.Grants = []*gw.ReferenceGrant{{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: gw.ReferenceGrantSpec{
			From: []gw.ReferenceGrantFrom{{Group: gw.GroupName, Kind: "TCPRoute", Namespace: "apps"}}, To: []gw.ReferenceGrantTo{{Kind: "Service"}}}}}
	})
	if o := settled(t, &in); len(o.Services) != 1 {
		t.Fatalf("have %q", events(o))
	}
	in.Gateways.Grants = nil
	if o := settled(t, &in); len(o.Services) != 0 || len(in.Services) != 1 {
		t.Errorf("have %+v", o.Services)
	}
}

// Connections go on while a backend changes: the fleet's service stays the same one, and kube-proxy never has an address and port twice.
func TestABackendOfAnotherNamespaceTakesOver(t *testing.T) {
	in := gated()
	settled(t, &in)
	there := behind("web")
	there.Namespace = "apps"
	in.Services = append(in.Services, there)
	in.Gateways.TCPRoutes[0].Spec.Rules[0].BackendRefs[0].Namespace = pointer(gw.Namespace("apps"))
	in.Gateways.Grants = []*gw.ReferenceGrant{{ObjectMeta: metav1.ObjectMeta{Namespace: "apps"}, Spec: gw.ReferenceGrantSpec{
		From: []gw.ReferenceGrantFrom{{Group: gw.GroupName, Kind: "TCPRoute", Namespace: "default"}}, To: []gw.ReferenceGrantTo{{Kind: "Service"}}}}}
	for range 6 {
		o := Map(options(t), in)
		if len(o.Services) != 1 || o.Services[0].Name != "default:edge:tcp:80" {
			t.Fatalf("have %+v", o.Services)
		}
		write(&in, &o)
		at := 0
		for _, s := range in.Services {
			if len(s.Status.LoadBalancer.Ingress) > 0 {
				at++
			}
		}
		if at > 1 {
			t.Fatal("two Services have the address")
		}
	}
	if last := in.Services[len(in.Services)-1]; last.Namespace != "apps" || len(last.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("have %+v", last)
	}
}

// Promise: Two Gateways do not get one address, unless both say that they share it and their ports differ.
func TestTwoGatewaysThatAskForOneAddress(t *testing.T) {
	for name, c := range map[string]struct {
		ports [2]string
		key   string
		want  string
	}{
		"no key":        {[2]string{"tcp/80", "tcp/81"}, "", "Accepted, !Programmed AddressNotUsable"},
		"a key":         {[2]string{"tcp/80", "tcp/81"}, "us", "Accepted, Programmed"},
		"one port":      {[2]string{"tcp/80", "tcp/80"}, "us", "Accepted, !Programmed AddressNotUsable"},
		"two protocols": {[2]string{"tcp/80", "udp/80"}, "us", "Accepted, Programmed"},
	} {
		t.Run(name, func(t *testing.T) {
			in := gated(func(in *Input) {
				in.Gateways.Gateways = []*gw.Gateway{edge("edge", c.ports[0]), edge("second", c.ports[1])}
				for i, g := range in.Gateways.Gateways {
					g.Spec.Addresses = []gw.GatewaySpecAddress{{Value: "203.0.113.2"}}
					g.CreationTimestamp = metav1.NewTime(began.AddDate(0, 0, i))
					if c.key != "" {
						g.Annotations = map[string]string{"ballast.io/sharing-key": c.key}
					}
				}
			})
			o := settled(t, &in)
			if first := conditionsText(gatewayOf(t, o, "edge").Status.Conditions); first != "Accepted, Programmed" {
				t.Errorf("the older one is %s", first)
			}
			if second := conditionsText(gatewayOf(t, o, "second").Status.Conditions); second != c.want {
				t.Errorf("the younger one is %s, events %q", second, events(o))
			}
		})
	}
	in := gated(func(in *Input) { // a Service has it
		in.Services = append(in.Services, service("lb", annotated("vips", "203.0.113.2")))
		in.Gateways.Gateways[0].Spec.Addresses = []gw.GatewaySpecAddress{{Value: "203.0.113.2"}}
		in.Gateways.Gateways[0].CreationTimestamp = metav1.NewTime(began.AddDate(0, 0, 1))
	})
	o := settled(t, &in)
	if text := conditionsText(gatewayOf(t, o, "edge").Status.Conditions); text != "Accepted, !Programmed AddressNotUsable" || addresses(o, "lb") != "203.0.113.2" ||
		!strings.Contains(strings.Join(events(o), "\n"), "203.0.113.2 is the address of Service default/lb") {
		t.Errorf("have %s, events %q", text, events(o))
	}
}

func TestAddressesOfAGatewayStay(t *testing.T) {
	in := gated()
	settled(t, &in)
	older := edge("aa", "tcp/80")
	older.CreationTimestamp = metav1.NewTime(began.AddDate(-1, 0, 0))
	in.Gateways.Gateways = append(in.Gateways.Gateways, older)
	in.Gateways.Gateways[0].Spec.Listeners = edge("edge", "tcp/81", "udp/53").Spec.Listeners // others in place of the one
	o := settled(t, &in)
	if gatewayOf(t, o, "edge").Status.Addresses[0].Value != "203.0.113.0" || gatewayOf(t, o, "aa").Status.Addresses[0].Value != "203.0.113.1" {
		t.Errorf("have %+v", o.Gateways)
	}
	if len(o.Services) != 1 || o.Services[0].Name != "default:edge:tcp:81" || gatewayOf(t, o, "edge").Status.Listeners[1].AttachedRoutes != 0 {
		t.Errorf("have %+v", o.Services)
	}
	in.Gateways.Gateways[0].Spec.Listeners[0].Protocol = "HTTP" // a mistake
	in.Gateways.Gateways[0].Spec.Listeners = in.Gateways.Gateways[0].Spec.Listeners[:1]
	if o = settled(t, &in); gatewayOf(t, o, "edge").Status.Addresses[0].Value != "203.0.113.0" {
		t.Errorf("have %+v", o.Gateways)
	}
}

// What others have written stays, and nothing is written of routes that do not name us.
func TestEntriesOfOtherControllersStay(t *testing.T) {
	theirs := gw.RouteParentStatus{ParentRef: gw.ParentReference{Name: "theirs"}, ControllerName: "example.com/other", Conditions: []metav1.Condition{{Type: "Accepted", Reason: "Own"}}}
	stale := gw.RouteParentStatus{ParentRef: gw.ParentReference{Name: "gone"}, ControllerName: DefaultClass}
	in := gated(func(in *Input) {
		other := tcpRoute("other", "theirs", "web")
		other.Status.Parents = []gw.RouteParentStatus{theirs}
		in.Gateways.TCPRoutes[0].Status.Parents = []gw.RouteParentStatus{stale, theirs}
		in.Gateways.TCPRoutes = append(in.Gateways.TCPRoutes, other)
	})
	o := Map(options(t), in)
	if len(o.Routes) != 1 || len(o.Routes[0].Parents) != 2 || o.Routes[0].Parents[0].ParentRef.Name != "theirs" || o.Routes[0].Parents[0].Conditions[0].Reason != "Own" ||
		o.Routes[0].Parents[1].ControllerName != DefaultClass {
		t.Errorf("have %+v", o.Routes)
	}
	in.Gateways.TCPRoutes[0].Status.Parents = slices.Repeat([]gw.RouteParentStatus{theirs}, 32)
	if o = Map(options(t), in); len(o.Routes) != 0 {
		t.Errorf("there is no room: %+v", o.Routes)
	}
}

// Promise: A Service that only looks like a listener's is neither changed nor removed.
func TestAForgedServiceOfAListenerIsLeftAlone(t *testing.T) {
	in := gated()
	settled(t, &in)
	copied := in.Services[1].DeepCopy()
	copied.Name = "copied"
	in.Services = append(in.Services, copied)
	if o := Map(options(t), in); len(o.Excess) != 0 || len(o.Derived) != 0 {
		t.Errorf("have %+v, %+v", o.Excess, o.Derived)
	}
	in = gated()
	name := Map(options(t), in).Derived[0].Want.Name
	in.Services = append(in.Services, behind(name))
	o := settled(t, &in)
	if text := conditionsText(gatewayOf(t, o, "edge").Status.Listeners[0].Conditions[3:]); len(o.Services) != 0 || text != "!Programmed Pending" ||
		!strings.Contains(strings.Join(events(o), "\n"), "Service default/"+name+" is in the way") {
		t.Errorf("have %s, events %q", text, events(o))
	}
	changed := gated()
	settled(t, &changed)
	changed.Services[1] = changed.Services[1].DeepCopy()
	changed.Services[1].Spec.Selector = map[string]string{"app": "evil"}
	changed.Services[1].Status.LoadBalancer.Ingress[0].IP = "203.0.113.9"
	settled(t, &changed)
	if s := changed.Services[1]; s.Spec.Selector["app"] != "web" || s.Status.LoadBalancer.Ingress[0].IP != "203.0.113.0" {
		t.Errorf("have %+v", s)
	}
}

func TestServicesOfBothFamiliesFollowTheirBackend(t *testing.T) {
	in := gated(func(in *Input) {
		in.Services[0].Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		in.Gateways.Gateways[0].Spec.Addresses = []gw.GatewaySpecAddress{{Value: "203.0.113.1"}, {Value: "2001:db8::1"}}
	})
	o := settled(t, &in)
	if fmt.Sprint(find(t, o, "default:edge:tcp:80").VIPs()) != "[203.0.113.1 2001:db8::1]" || len(in.Services[1].Spec.IPFamilies) != 2 {
		t.Errorf("have %+v, events %q", o.Services, events(o))
	}
	in.Gateways.Gateways[0].Spec.Addresses = in.Gateways.Gateways[0].Spec.Addresses[:1]
	in.Services[0] = behind("web") // cannot be changed of the Service that is there
	if settled(t, &in); len(in.Services) != 2 || len(in.Services[1].Spec.IPFamilies) != 1 {
		t.Errorf("have %+v", in.Services)
	}
}

// Names in a fleet are short, and a Gateway's are no Service's.
func TestNamesOfListeners(t *testing.T) {
	o := options(t)
	names := map[string]bool{}
	for _, prefix := range []string{"", "prod"} {
		o.Prefix = prefix
		for _, name := range []string{"web", strings.Repeat("long", 30), strings.Repeat("long", 29) + "lone"} {
			key := edgeKey(name)
			for _, port := range []uint16{1, 65535} {
				listener := o.listenerName(key, model.ProtocolUDP, port)
				names[listener] = true
				if len(listener) > maxName || !isListenerName(listener) {
					t.Errorf("%s has %d bytes", listener, len(listener))
				}
			}
			if service := o.Name("default", name, model.ProtocolTCP); isListenerName(service) {
				t.Errorf("%s is a Service's", service)
			}
		}
	}
	if len(names) != 12 {
		t.Errorf("have %v", names)
	}
	for identity, want := range map[string]string{"default/edge.example/tcp/80": "ballast-edge-example-80-", "x/" + strings.Repeat("g", 99) + "/udp/65535": "ballast-" + strings.Repeat("g", 35) + "-65535-"} {
		if name := o.derivedNameOf(identity); !strings.HasPrefix(name, want) || len(name) != len(want)+8 || len(name) > 63 {
			t.Errorf("%s is %s", identity, name)
		}
	}
}

func manyGateways(n int) Input {
	in := gated(func(in *Input) {
		in.Gateways.Gateways, in.Gateways.TCPRoutes, in.Services, in.Slices = nil, nil, nil, nil
	})
	for i := range n {
		name := fmt.Sprint("g", i)
		in.Gateways.Gateways = append(in.Gateways.Gateways, edge(name, "tcp/80"))
		in.Gateways.TCPRoutes = append(in.Gateways.TCPRoutes, tcpRoute(name, name, name))
		in.Services = append(in.Services, behind(name))
		in.Slices = append(in.Slices, slice(name, endpoint(1, "10.9.0.1", "ready")))
	}
	return in
}

// What is counted are allocations.
func TestManyGatewaysAreMappedInLinearTime(t *testing.T) {
	o := options(t)
	o.Pools = []Pool{{Name: "public", Ranges: []Range{{netip.MustParseAddr("198.18.0.0"), netip.MustParseAddr("198.18.255.255")}}}}
	count := func(n int) float64 {
		in := manyGateways(n)
		for range 2 {
			out := Map(o, in)
			write(&in, &out)
		}
		out := Map(o, in)
		if len(out.Services) != n || len(out.Derived) != 0 || out.Refused != 0 {
			t.Fatalf("%d of %d are in the fleet, %d to be made", len(out.Services), n, len(out.Derived))
		}
		return testing.AllocsPerRun(1, func() { Map(o, in) })
	}
	few, many := count(512), count(4096)
	t.Logf("%.0f allocations for 512 Gateways, %.0f for 4,096", few, many)
	if many > 10*few {
		t.Errorf("%.0f allocations for 512, %.0f for 4,096", few, many)
	}
}
