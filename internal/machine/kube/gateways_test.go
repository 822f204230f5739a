package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/ballast-lb/ballast/internal/model"
)

func pointer[T any](v T) *T { return &v }

func class(name, controller string) *gw.GatewayClass {
	return &gw.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 3}, Spec: gw.GatewayClassSpec{ControllerName: gw.GatewayController(controller)}}
}

// edge is a Gateway with listeners like tcp/80, with the finalizer.
func edge(name string, listeners ...string) *gw.Gateway {
	g := &gw.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 7, CreationTimestamp: metav1.NewTime(began), Finalizers: []string{DefaultClass}},
		Spec: gw.GatewaySpec{GatewayClassName: "ballast"}}
	for _, text := range listeners {
		protocol, port, _ := strings.Cut(text, "/")
		l := gw.Listener{Name: gw.SectionName(protocol + port), Protocol: gw.ProtocolType(strings.ToUpper(protocol))}
		if _, err := fmt.Sscan(port, &l.Port); err != nil {
			panic(err)
		}
		if l.Protocol == gw.TLSProtocolType {
			l.TLS = &gw.ListenerTLSConfig{Mode: pointer(gw.TLSModePassthrough)}
		}
		g.Spec.Listeners = append(g.Spec.Listeners, l)
	}
	return g
}

func refs(services ...string) (list []gw.BackendRef) {
	for _, s := range services {
		name, weight, weighed := strings.Cut(s, "*")
		ref := gw.BackendRef{BackendObjectReference: gw.BackendObjectReference{Name: gw.ObjectName(name), Port: pointer(gw.PortNumber(8000))}}
		if weighed {
			ref.Weight = pointer(int32(weight[0] - '0'))
		}
		list = append(list, ref)
	}
	return list
}

func common(gateway string) gw.CommonRouteSpec {
	return gw.CommonRouteSpec{ParentRefs: []gw.ParentReference{{Name: gw.ObjectName(gateway), Namespace: pointer(gw.Namespace("default"))}}}
}

func tcpRoute(name, gateway string, backends ...string) *gw.TCPRoute {
	return &gw.TCPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 5, CreationTimestamp: metav1.NewTime(began)},
		Spec: gw.TCPRouteSpec{CommonRouteSpec: common(gateway), Rules: []gw.TCPRouteRule{{BackendRefs: refs(backends...)}}}}
}

func tlsRoute(name, gateway, hostname, backend string, age int) *gw.TLSRoute {
	return &gw.TLSRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.NewTime(began.Add(time.Duration(-age) * time.Hour))},
		Spec: gw.TLSRouteSpec{CommonRouteSpec: common(gateway), Hostnames: []gw.Hostname{gw.Hostname(hostname)}, Rules: []gw.TLSRouteRule{{BackendRefs: refs(backend)}}}}
}

// behind is a Service that selects pods, not one of ours.
func behind(name string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app": name},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Name: "main", Port: 8000, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)},
			{Name: "udp", Port: 8000, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(8080)}}}}
	for _, f := range change {
		f(s)
	}
	return s
}

// cluster of a Gateway with one listener, its route and its backend, with an endpoint on n1.
func gated(change ...func(*Input)) Input {
	in := Input{Services: []*corev1.Service{behind("web")}, Nodes: []*corev1.Node{node(1), node(2)}, Slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ready"))},
		Gateways: Gateways{Known: true, Classes: []*gw.GatewayClass{class("ballast", DefaultClass), class("other", "example.com/other")}, Gateways: []*gw.Gateway{edge("edge", "tcp/80")},
			TCPRoutes: []*gw.TCPRoute{tcpRoute("web", "edge", "web")}, Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "apps", Labels: map[string]string{"may": "yes"}}}}}}
	for _, f := range change {
		f(&in)
	}
	return in
}

// settled maps until nothing is to be made, removed or written any more, as API server and fleet would take it.
func settled(t testing.TB, in *Input) (o Output) {
	t.Helper()
	for range 8 {
		o = Map(options(t), *in)
		write(in, &o)
		if len(o.Derived)+len(o.Excess) == 0 {
			return o
		}
	}
	t.Fatalf("it does not come to an end: %+v, %+v", o.Derived, o.Excess)
	return o
}

// write has cluster and fleet take what was decided.
func write(in *Input, o *Output) {
	in.Fleet = after(*o)
	in.Services = slices.DeleteFunc(slices.Clone(in.Services), func(s *corev1.Service) bool { return slices.Contains(o.Excess, s) })
	for _, d := range o.Derived {
		if d.Have == nil {
			made := d.Want.DeepCopy()
			made.Spec.HealthCheckNodePort = 31000 + made.Spec.Ports[0].Port
			in.Services = append(in.Services, made)
			continue
		}
		changed := d.Changed()
		changed.Status = d.Want.Status
		in.Services[slices.Index(in.Services, d.Have)] = changed
	}
	in.Gateways.Gateways = slices.Clone(in.Gateways.Gateways)
	for _, g := range o.Gateways {
		i := slices.Index(in.Gateways.Gateways, g.Gateway)
		switch {
		case g.Status != nil:
			in.Gateways.Gateways[i] = g.Gateway.DeepCopy()
			in.Gateways.Gateways[i].Status = *g.Status
		case !g.Finalized:
			in.Gateways.Gateways = slices.Delete(in.Gateways.Gateways, i, i+1)
		}
	}
	for _, r := range o.Routes {
		switch route := r.Route.(type) {
		case *gw.TCPRoute:
			route.Status.Parents = r.Parents
		case *gw.UDPRoute:
			route.Status.Parents = r.Parents
		case *gw.TLSRoute:
			route.Status.Parents = r.Parents
		}
	}
}

// conditionsText is like "Accepted, !Programmed Pending".
func conditionsText(list []metav1.Condition) string {
	var texts []string
	for _, c := range list {
		if c.Status == metav1.ConditionTrue {
			texts = append(texts, c.Type)
		} else {
			texts = append(texts, "!"+c.Type+" "+c.Reason)
		}
		if c.Status == metav1.ConditionTrue && c.Type != c.Reason {
			texts[len(texts)-1] += " " + c.Reason
		}
	}
	return strings.Join(texts, ", ")
}

func gatewayOf(t testing.TB, o Output, name string) *GatewayObject {
	t.Helper()
	for i := range o.Gateways {
		if o.Gateways[i].Gateway.Name == name {
			return &o.Gateways[i]
		}
	}
	t.Fatalf("Gateway %s is not ours", name)
	return nil
}

// routeText is what the status of a route says of each of its parents.
func routeText(o Output, name string) string {
	for _, r := range o.Routes {
		if r.Route.GetName() == name {
			var texts []string
			for _, p := range r.Parents {
				texts = append(texts, conditionsText(p.Conditions))
			}
			return strings.Join(texts, "; ")
		}
	}
	return "none"
}

func TestAListenerWithARouteBecomesAServiceOfTheFleet(t *testing.T) {
	in := gated()
	first := Map(options(t), in)
	if len(first.Services) != 0 || len(first.Derived) != 1 {
		t.Fatalf("before nodes know the address, have %+v, %+v", first.Services, first.Derived)
	}
	if text := conditionsText(gatewayOf(t, first, "edge").Status.Listeners[0].Conditions); text != "Accepted, !Conflicted NoConflicts, ResolvedRefs, !Programmed Pending" {
		t.Errorf("conditions are %s", text)
	}
	o := settled(t, &in)
	s := find(t, o, "default:edge:tcp:80")
	if s.Owner != "kube" || s.Where() != "203.0.113.0" || s.PortsText() != "80" || serversText(s) != "n1=10.0.0.1*1 active" || s.Health.Check != model.CheckHTTP || s.Health.Port != 31080 ||
		s.Dispatch != model.DispatchWRR {
		t.Errorf("have %+v", s)
	}
	g := gatewayOf(t, o, "edge")
	if text := conditionsText(g.Status.Conditions); text != "Accepted, Programmed" || len(g.Status.Addresses) != 1 || g.Status.Addresses[0].Value != "203.0.113.0" || !g.Finalized {
		t.Errorf("have %s, %+v", text, g)
	}
	l := g.Status.Listeners[0]
	if text := conditionsText(l.Conditions); text != "Accepted, !Conflicted NoConflicts, ResolvedRefs, Programmed" || l.AttachedRoutes != 1 || l.SupportedKinds[0].Kind != "TCPRoute" ||
		l.Conditions[0].ObservedGeneration != 7 {
		t.Errorf("have %s, %+v", text, l)
	}
	if text := routeText(o, "web"); text != "Accepted, ResolvedRefs" || o.Routes[0].Parents[0].Conditions[0].ObservedGeneration != 5 {
		t.Errorf("the route is %s", text)
	}
	if len(o.Classes) != 1 || conditionsText([]metav1.Condition{o.Classes[0].Condition}) != "Accepted" || o.Classes[0].Condition.ObservedGeneration != 3 || len(o.Events) > 0 || o.Refused > 0 {
		t.Errorf("have %+v, events %v", o.Classes, events(o))
	}
	derived := in.Services[1]
	if derived.Spec.Selector["app"] != "web" || derived.Spec.Ports[0].Port != 80 || derived.Spec.Ports[0].TargetPort.IntVal != 8080 || derived.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal ||
		*derived.Spec.LoadBalancerClass == DefaultClass || derived.Status.LoadBalancer.Ingress[0].IP != "203.0.113.0" {
		t.Errorf("nodes have %+v", derived)
	}
}

// A listener and its routes, by what is changed of the cluster: the status of the route, of the listener, and the servers.
func TestRoutesFollowTheRulesOfTheGatewayAPI(t *testing.T) {
	const accepted = "Accepted, !Conflicted NoConflicts, ResolvedRefs, Programmed"
	elsewhere := func(in *Input) { in.Gateways.TCPRoutes[0].Namespace = "apps" }
	opened := func(from gw.FromNamespaces, selector *metav1.LabelSelector) func(*Input) {
		return func(in *Input) {
			in.Gateways.Gateways[0].Spec.Listeners[0].AllowedRoutes = &gw.AllowedRoutes{Namespaces: &gw.RouteNamespaces{From: &from, Selector: selector}}
		}
	}
	grant := func(kind gw.Kind, from gw.Namespace, name *gw.ObjectName) func(*Input) {
		return func(in *Input) {
			in.Gateways.Grants = append(in.Gateways.Grants, &gw.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: gw.ReferenceGrantSpec{
				From: []gw.ReferenceGrantFrom{{Group: gw.GroupName, Kind: kind, Namespace: from}}, To: []gw.ReferenceGrantTo{{Kind: "Service", Name: name}}}})
		}
	}
	toDefault := func(in *Input) {
		in.Gateways.TCPRoutes[0].Spec.Rules[0].BackendRefs[0].Namespace = pointer(gw.Namespace("default"))
	}
	route := func(change func(*gw.TCPRoute)) func(*Input) {
		return func(in *Input) { change(in.Gateways.TCPRoutes[0]) }
	}
	section := func(name string) func(*Input) {
		return route(func(r *gw.TCPRoute) { r.Spec.ParentRefs[0].SectionName = pointer(gw.SectionName(name)) })
	}
	port := func(n int32) func(*Input) {
		return route(func(r *gw.TCPRoute) { r.Spec.ParentRefs[0].Port = pointer(gw.PortNumber(n)) })
	}
	backends := func(list ...string) func(*Input) {
		return func(in *Input) {
			in.Services = append(in.Services, behind("mail"))
			in.Slices = append(in.Slices, slice("mail", endpoint(2, "10.9.0.2", "ready")))
			in.Gateways.TCPRoutes[0].Spec.Rules[0].BackendRefs = refs(list...)
		}
	}
	both := func(changes ...func(*Input)) func(*Input) {
		return func(in *Input) {
			for _, f := range changes {
				f(in)
			}
		}
	}
	for name, c := range map[string]struct {
		change   func(*Input)
		route    string
		listener string // empty: accepted
		attached int32
		servers  string
		event    string
	}{
		"a section":                        {section("tcp80"), "Accepted, ResolvedRefs", "", 1, "n1", ""},
		"a port":                           {port(80), "Accepted, ResolvedRefs", "", 1, "n1", ""},
		"a section that is not":            {section("http"), "!Accepted NoMatchingParent, ResolvedRefs", "", 0, "", "no listener of that name"},
		"a port that is not":               {both(section("tcp80"), port(81)), "!Accepted NoMatchingParent, ResolvedRefs", "", 0, "", "no listener of that name"},
		"another namespace":                {elsewhere, "!Accepted NotAllowedByListeners, !ResolvedRefs BackendNotFound", "", 0, "", "does not allow namespace apps"},
		"all namespaces":                   {both(elsewhere, opened(gw.NamespacesFromAll, nil)), "Accepted, !ResolvedRefs BackendNotFound", "", 1, "", "no Service web in namespace apps"},
		"no namespace":                     {opened(gw.NamespacesFromNone, nil), "!Accepted NotAllowedByListeners, ResolvedRefs", "", 0, "", "does not allow"},
		"a chosen namespace":               {both(elsewhere, opened(gw.NamespacesFromSelector, &metav1.LabelSelector{MatchLabels: map[string]string{"may": "yes"}})), "Accepted, !ResolvedRefs BackendNotFound", "", 1, "", "no Service"},
		"a namespace that is not chosen":   {both(elsewhere, opened(gw.NamespacesFromSelector, &metav1.LabelSelector{MatchLabels: map[string]string{"may": "no"}})), "!Accepted NotAllowedByListeners, !ResolvedRefs BackendNotFound", "", 0, "", "does not allow"},
		"no selector":                      {both(elsewhere, opened(gw.NamespacesFromSelector, nil)), "!Accepted NotAllowedByListeners, !ResolvedRefs BackendNotFound", "", 0, "", "does not allow"},
		"no grant":                         {both(elsewhere, toDefault, opened(gw.NamespacesFromAll, nil)), "Accepted, !ResolvedRefs RefNotPermitted", "", 1, "", "no ReferenceGrant of namespace default"},
		"a grant":                          {both(elsewhere, toDefault, opened(gw.NamespacesFromAll, nil), grant("TCPRoute", "apps", nil)), "Accepted, ResolvedRefs", "", 1, "n1", ""},
		"a grant of the Service":           {both(elsewhere, toDefault, opened(gw.NamespacesFromAll, nil), grant("TCPRoute", "apps", pointer(gw.ObjectName("web")))), "Accepted, ResolvedRefs", "", 1, "n1", ""},
		"a grant of another Service":       {both(elsewhere, toDefault, opened(gw.NamespacesFromAll, nil), grant("TCPRoute", "apps", pointer(gw.ObjectName("mail")))), "Accepted, !ResolvedRefs RefNotPermitted", "", 1, "", "no ReferenceGrant"},
		"a grant for another kind":         {both(elsewhere, toDefault, opened(gw.NamespacesFromAll, nil), grant("UDPRoute", "apps", nil)), "Accepted, !ResolvedRefs RefNotPermitted", "", 1, "", "no ReferenceGrant"},
		"a grant for another namespace":    {both(elsewhere, toDefault, opened(gw.NamespacesFromAll, nil), grant("TCPRoute", "other", nil)), "Accepted, !ResolvedRefs RefNotPermitted", "", 1, "", "no ReferenceGrant"},
		"a backend of another kind":        {route(func(r *gw.TCPRoute) { r.Spec.Rules[0].BackendRefs[0].Kind = pointer(gw.Kind("Bucket")) }), "Accepted, !ResolvedRefs InvalidKind", "", 1, "", "only Services"},
		"a backend without a port":         {route(func(r *gw.TCPRoute) { r.Spec.Rules[0].BackendRefs[0].Port = nil }), "Accepted, !ResolvedRefs UnsupportedValue", "", 1, "", "port: missing"},
		"a port that the Service has not":  {route(func(r *gw.TCPRoute) { r.Spec.Rules[0].BackendRefs[0].Port = pointer(gw.PortNumber(9)) }), "Accepted, !ResolvedRefs BackendNotFound", "", 1, "", "has no port 9 of tcp"},
		"a Service that selects nothing":   {func(in *Input) { in.Services[0].Spec.Selector = nil }, "Accepted, !ResolvedRefs UnsupportedValue", "", 1, "", "selects no pods"},
		"a Service that is a name":         {func(in *Input) { in.Services[0].Spec.Type = corev1.ServiceTypeExternalName }, "Accepted, !ResolvedRefs UnsupportedValue", "", 1, "", "selects no pods"},
		"two rules":                        {route(func(r *gw.TCPRoute) { r.Spec.Rules = append(r.Spec.Rules, r.Spec.Rules[0]) }), "!Accepted UnsupportedValue, ResolvedRefs", "", 0, "", "2 rules"},
		"two backends":                     {backends("web", "mail"), "!Accepted UnsupportedValue, ResolvedRefs", "", 0, "", "default/web:8000, default/mail:8000 have a weight above 0"},
		"two backends, one without weight": {backends("web*0", "mail*9"), "Accepted, ResolvedRefs", "", 1, "n2", ""},
		"a backend twice":                  {backends("web", "web*3"), "Accepted, ResolvedRefs", "", 1, "n1", ""},
		"one without weight is missing":    {backends("none*0", "web"), "Accepted, !ResolvedRefs BackendNotFound", "", 1, "n1", "no Service none"},
		"no weight at all":                 {backends("web*0", "mail*0"), "Accepted, ResolvedRefs", "", 1, "", ""},
		"a Service of another family": {func(in *Input) { in.Services[0].Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }, "Accepted, ResolvedRefs",
			"Accepted, !Conflicted NoConflicts, ResolvedRefs, !Programmed Pending", 1, "", "has no IPv4"},
		"a parent that is no Gateway": {route(func(r *gw.TCPRoute) { r.Spec.ParentRefs[0].Kind = pointer(gw.Kind("Service")) }), "none", "", 0, "", ""},
		"a Gateway that is not ours":  {route(func(r *gw.TCPRoute) { r.Spec.ParentRefs[0].Name = "other" }), "none", "", 0, "", ""},
		"another kind allowed": {func(in *Input) {
			in.Gateways.Gateways[0].Spec.Listeners[0].AllowedRoutes = &gw.AllowedRoutes{Kinds: []gw.RouteGroupKind{{Kind: "UDPRoute"}}}
		}, "!Accepted NotAllowedByListeners, ResolvedRefs", "Accepted, !Conflicted NoConflicts, !ResolvedRefs InvalidRouteKinds, Programmed", 0, "", "takes TCPRoute alone, not UDPRoute"},
		"another group allowed": {func(in *Input) {
			in.Gateways.Gateways[0].Spec.Listeners[0].AllowedRoutes = &gw.AllowedRoutes{Kinds: []gw.RouteGroupKind{{Kind: "TCPRoute"}, {Group: pointer(gw.Group("example.com")), Kind: "TCPRoute"}}}
		}, "Accepted, ResolvedRefs", "Accepted, !Conflicted NoConflicts, !ResolvedRefs InvalidRouteKinds, Programmed", 1, "n1", "not TCPRoute"},
	} {
		t.Run(name, func(t *testing.T) {
			in := gated(c.change)
			o := settled(t, &in)
			servers := ""
			for i := range o.Services {
				servers += strings.Split(serversText(&o.Services[i]), "=")[0]
			}
			l := gatewayOf(t, o, "edge").Status.Listeners[0]
			want := c.listener
			if want == "" {
				want = accepted
			}
			if text := routeText(o, "web"); text != c.route || conditionsText(l.Conditions) != want || l.AttachedRoutes != c.attached || servers != c.servers {
				t.Errorf("have %s; %s, %d; %s", text, conditionsText(l.Conditions), l.AttachedRoutes, servers)
			}
			if all := strings.Join(events(o), "\n"); (c.event == "") != (all == "") || !strings.Contains(all, c.event) {
				t.Errorf("events are %s", all)
			}
		})
	}
}

func TestListenersThatCannotBeHad(t *testing.T) {
	for name, c := range map[string]struct {
		listeners []string
		change    func(*gw.Gateway)
		gateway   string
		want      []string
	}{
		"HTTP": {[]string{"http/80"}, nil, "!Accepted ListenersNotValid, !Programmed Invalid", []string{"!Accepted UnsupportedProtocol"}},
		"HTTP beside TCP": {[]string{"http/80", "tcp/80"}, nil, "Accepted ListenersNotValid, Programmed",
			[]string{"!Accepted UnsupportedProtocol", "Accepted"}},
		"TLS that ends": {[]string{"tls/443"}, func(g *gw.Gateway) { g.Spec.Listeners[0].TLS.Mode = pointer(gw.TLSModeTerminate) }, "!Accepted ListenersNotValid, !Programmed Invalid",
			[]string{"!Accepted UnsupportedValue"}},
		"TLS without a mode": {[]string{"tls/443"}, func(g *gw.Gateway) { g.Spec.Listeners[0].TLS = nil }, "!Accepted ListenersNotValid, !Programmed Invalid",
			[]string{"!Accepted UnsupportedValue"}},
		"TCP and UDP of a port": {[]string{"tcp/53", "udp/53"}, nil, "Accepted, Programmed", []string{"Accepted", "Accepted"}},
		"TCP and TLS of a port": {[]string{"tcp/53", "tls/53"}, nil, "!Accepted ListenersNotValid, !Programmed Invalid", []string{"!Accepted ProtocolConflict", "!Accepted ProtocolConflict"}},
		"twice":                 {[]string{"tcp/53", "tcp/53", "tcp/54"}, nil, "Accepted ListenersNotValid, Programmed", []string{"!Accepted ProtocolConflict", "!Accepted ProtocolConflict", "Accepted"}},
		"two names of a port":   {[]string{"tls/53", "tls/53"}, nil, "!Accepted ListenersNotValid, !Programmed Invalid", []string{"!Accepted HostnameConflict", "!Accepted HostnameConflict"}},
		"a wrong port":          {[]string{"tcp/70000"}, nil, "!Accepted ListenersNotValid, !Programmed Invalid", []string{"!Accepted UnsupportedValue"}},
		"parameters": {[]string{"tcp/80"}, func(g *gw.Gateway) {
			g.Spec.Infrastructure = &gw.GatewayInfrastructure{ParametersRef: &gw.LocalParametersReference{}}
		}, "!Accepted InvalidParameters, !Programmed Invalid", []string{"Accepted"}},
		"a name for an address": {[]string{"tcp/80"}, func(g *gw.Gateway) {
			g.Spec.Addresses = []gw.GatewaySpecAddress{{Type: pointer(gw.HostnameAddressType), Value: "a.example"}}
		}, "!Accepted UnsupportedAddress, !Programmed Invalid", []string{"Accepted"}},
		"no address":             {[]string{"tcp/80"}, func(g *gw.Gateway) { g.Spec.Addresses = []gw.GatewaySpecAddress{{Value: "example"}} }, "!Accepted UnsupportedAddress, !Programmed Invalid", []string{"Accepted"}},
		"an address of nobody":   {[]string{"tcp/80"}, func(g *gw.Gateway) { g.Spec.Addresses = []gw.GatewaySpecAddress{{Value: "192.0.2.1"}} }, "Accepted, !Programmed AddressNotUsable", []string{"Accepted"}},
		"any address":            {[]string{"tcp/80"}, func(g *gw.Gateway) { g.Spec.Addresses = []gw.GatewaySpecAddress{{Type: pointer(gw.IPAddressType)}} }, "Accepted, Programmed", []string{"Accepted"}},
		"a chosen address":       {[]string{"tcp/80"}, func(g *gw.Gateway) { g.Spec.Addresses = []gw.GatewaySpecAddress{{Value: "203.0.113.3"}} }, "Accepted, Programmed", []string{"Accepted"}},
		"an unknown pool":        {[]string{"tcp/80"}, func(g *gw.Gateway) { g.Annotations = map[string]string{"ballast.io/pool": "none"} }, "Accepted, !Programmed AddressNotAssigned", []string{"Accepted"}},
		"an unknown setting":     {[]string{"tcp/80"}, func(g *gw.Gateway) { g.Annotations = map[string]string{"ballast.io/colour": "red"} }, "!Accepted Invalid, !Programmed Invalid", []string{"Accepted"}},
		"addresses as a setting": {[]string{"tcp/80"}, func(g *gw.Gateway) { g.Annotations = map[string]string{"ballast.io/vips": "203.0.113.1"} }, "!Accepted Invalid, !Programmed Invalid", []string{"Accepted"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := gated(func(in *Input) {
				in.Gateways.Gateways[0] = edge("edge", c.listeners...)
				if c.change != nil {
					c.change(in.Gateways.Gateways[0])
				}
			})
			o := settled(t, &in)
			g := gatewayOf(t, o, "edge")
			var have []string
			for _, l := range g.Status.Listeners {
				have = append(have, conditionsText(l.Conditions[:1]))
			}
			if text := conditionsText(g.Status.Conditions); text != c.gateway || !slices.Equal(have, c.want) {
				t.Errorf("have %s; %q", text, have)
			}
			if good := c.gateway == "Accepted, Programmed"; good != (len(events(o)) == 0) || (len(g.Status.Addresses) > 0) != strings.HasSuffix(c.gateway, ", Programmed") {
				t.Errorf("events are %q, addresses %v", events(o), g.Status.Addresses)
			}
		})
	}
}

// Promise: A TLSRoute that needs a second backend at a port is refused, as no load balancer reads server names.
func TestTLSRoutesOfOnePortHaveOneBackend(t *testing.T) {
	in := gated(func(in *Input) {
		in.Services = append(in.Services, behind("mail"))
		in.Gateways.TCPRoutes = nil
		in.Gateways.Gateways[0] = edge("edge", "tls/443")
		in.Gateways.TLSRoutes = []*gw.TLSRoute{tlsRoute("young", "edge", "b.example", "mail", 1), tlsRoute("old", "edge", "a.example", "web", 2), tlsRoute("like", "edge", "c.example", "web", 0)}
	})
	o := settled(t, &in)
	if serversText(find(t, o, "default:edge:tcp:443")) != "n1=10.0.0.1*1 active" || gatewayOf(t, o, "edge").Status.Listeners[0].AttachedRoutes != 2 {
		t.Errorf("have %+v", o)
	}
	if routeText(o, "old") != "Accepted, ResolvedRefs" || routeText(o, "like") != "Accepted, ResolvedRefs" || routeText(o, "young") != "!Accepted UnsupportedValue, ResolvedRefs" {
		t.Errorf("have %s, %s, %s", routeText(o, "old"), routeText(o, "like"), routeText(o, "young"))
	}
	if all := strings.Join(events(o), "\n"); !strings.Contains(all, "young Route: listener tls443: default/old is older and has another backend, and load balancers do not read server names") {
		t.Errorf("events are %s", all)
	}
	listener := &in.Gateways.Gateways[0].Spec.Listeners[0]
	for hostname, want := range map[string]string{"a.example": "Accepted", "*.example": "Accepted", "b.example": "!Accepted NoMatchingListenerHostname", "": "Accepted"} {
		listener.Hostname = pointer(gw.Hostname(hostname))
		if have := strings.Split(routeText(Map(options(t), in), "old"), ",")[0]; have != want {
			t.Errorf("at %q it is %s", hostname, have)
		}
	}
}

func TestHostnamesMeet(t *testing.T) {
	for pair, want := range map[[2]string]bool{{"a.b", "a.b"}: true, {"a.b", "b.b"}: false, {"*.b", "a.b"}: true, {"*.b", "a.a.b"}: true, {"*.b", "b"}: false, {"*.a.b", "*.b"}: true, {"*.a.b", "*.c.b"}: false} {
		if intersect(pair[0], pair[1]) != want || intersect(pair[1], pair[0]) != want {
			t.Errorf("%v: not %v", pair, want)
		}
	}
}

// Promise: Of several routes of one listener the oldest gets the connections, and the others say so.
func TestTheOldestRouteGetsTheConnections(t *testing.T) {
	in := gated(func(in *Input) {
		in.Services = append(in.Services, behind("mail"))
		in.Slices = append(in.Slices, slice("mail", endpoint(2, "10.9.0.2", "ready")))
		older := tcpRoute("zz", "edge", "mail")
		older.CreationTimestamp = metav1.NewTime(began.Add(-time.Second))
		in.Gateways.TCPRoutes = append(in.Gateways.TCPRoutes, older, tcpRoute("aa", "edge", "web"))
	})
	o := settled(t, &in)
	if have := serversText(find(t, o, "default:edge:tcp:80")); have != "n2=10.0.0.2*1 active" || gatewayOf(t, o, "edge").Status.Listeners[0].AttachedRoutes != 3 {
		t.Errorf("have %s", have)
	}
	if routeText(o, "web") != "Accepted, ResolvedRefs" || !strings.Contains(strings.Join(events(o), "\n"), "web Route: listener tcp80: default/zz is older and gets all connections") {
		t.Errorf("have %s, events %q", routeText(o, "web"), events(o))
	}
	in.Gateways.TCPRoutes = slices.DeleteFunc(in.Gateways.TCPRoutes, func(r *gw.TCPRoute) bool { return r.Name == "zz" })
	o = settled(t, &in)
	if have := serversText(find(t, o, "default:edge:tcp:80")); have != "n1=10.0.0.1*1 active" {
		t.Errorf("have %s", have)
	}
	if strings.Contains(strings.Join(events(o), "\n"), "aa Route") { // it has the same backend
		t.Errorf("events are %q", events(o))
	}
}

func edgeKey(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}
