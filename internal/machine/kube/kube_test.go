package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ballast-lb/ballast/internal/model"
)

// began is when the first Service of a test was created.
var began = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func ranges(t testing.TB, texts ...string) (list []Range) {
	t.Helper()
	for _, text := range texts {
		r, err := ParseRange(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

func options(t testing.TB) Options {
	return Options{Class: DefaultClass, Owner: "kube", Pools: []Pool{{Name: "public", Ranges: ranges(t, "203.0.113.0-203.0.113.3", "2001:db8::/126")}}}
}

// service is one of TCP port 80, which change changes.
func service(name string, change ...func(*corev1.Service)) *corev1.Service {
	class := DefaultClass
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.NewTime(began), Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			HealthCheckNodePort: 32000, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func annotated(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations[AnnotationPrefix+key] = value }
}

func families(policy corev1.IPFamilyPolicy, list ...corev1.IPFamily) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = list, &policy }
}

func ports(list ...corev1.ServicePort) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports = list }
}

func status(addresses ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for _, a := range addresses {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
	}
}

func younger(by int) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.CreationTimestamp = metav1.NewTime(began.Add(time.Duration(by) * time.Minute))
	}
}

// node is n1 at 10.0.0.1 and fd00::1.
func node(number int, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", number), Labels: map[string]string{}}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.Name}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeInternalIP, Address: netip.AddrFrom4([4]byte{10, 0, byte(number >> 8), byte(number)}).String()}, {Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd00::%x", number)}}
	for _, f := range change {
		f(n)
	}
	return n
}

func out(n *corev1.Node) { n.Labels[corev1.LabelNodeExcludeBalancers] = "" }

// endpoint is one on a node, in a state: ready, ending (it still serves), ended or down.
func endpoint(number int, address, state string) discoveryv1.Endpoint {
	name, yes, no := fmt.Sprint("n", number), true, false
	e := discoveryv1.Endpoint{NodeName: &name, Addresses: []string{address}}
	switch state {
	case "ready":
		e.Conditions = discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}
	case "ending":
		e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	case "ended":
		e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &yes}
	case "down":
		e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &no}
	}
	return e
}

func slice(of string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	family := discoveryv1.AddressTypeIPv4
	if len(endpoints) > 0 && strings.Contains(endpoints[0].Addresses[0], ":") {
		family = discoveryv1.AddressTypeIPv6
	}
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: of + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: of}},
		AddressType: family, Endpoints: endpoints}
}

// cluster of one Service with an endpoint on n1.
func one(s *corev1.Service) Input {
	return Input{Services: []*corev1.Service{s}, Nodes: []*corev1.Node{node(1), node(2), node(3)}, Slices: []*discoveryv1.EndpointSlice{slice(s.Name, endpoint(1, "10.9.0.1", "ready"))}}
}

// after is the fleet once it has what was decided, with ids.
func after(o Output, others ...model.Service) []model.Service {
	fleet := slices.Clone(others)
	for i := range o.Services {
		s := numbered(&o.Services[i])
		s.ApplyDefaults()
		fleet = append(fleet, s)
	}
	return fleet
}

func find(t testing.TB, o Output, name string) *model.Service {
	t.Helper()
	for i := range o.Services {
		if o.Services[i].Name == name {
			return &o.Services[i]
		}
	}
	t.Fatalf("the fleet has no service %s: %v", name, events(o))
	return nil
}

func serversText(s *model.Service) string {
	var list []string
	for _, server := range s.Servers {
		list = append(list, fmt.Sprintf("%s=%s*%d %s", server.Name, server.Address, server.Weight, server.State))
	}
	return strings.Join(list, ", ")
}

func events(o Output) (list []string) {
	for _, e := range o.Events {
		list = append(list, e.Object.GetName()+" "+e.Reason+": "+e.Message)
	}
	return list
}

func addresses(o Output, name string) string {
	for _, object := range o.Objects {
		if object.Service.Name == name {
			return strings.Trim(fmt.Sprint(object.Addresses), "[]")
		}
	}
	return "none"
}

func TestAServiceBecomesOneOfTheFleet(t *testing.T) {
	o := Map(options(t), one(service("web")))
	s := find(t, o, "default:web:tcp")
	if s.Owner != "kube" || s.Where() != "203.0.113.0" || s.PortsText() != "80" || serversText(s) != "n1=10.0.0.1*1 active" || s.Dispatch != model.DispatchWRR ||
		s.Health.Check != model.CheckHTTP || s.Health.Port != 32000 || s.Health.Path != "/healthz" {
		t.Errorf("have %+v", s)
	}
	if o.Refused != 0 || len(o.Events) != 0 || len(o.Objects) != 1 || !o.Objects[0].Finalized || addresses(o, "web") != "203.0.113.0" || !slices.Equal(o.Objects[0].Names, []string{s.Name}) {
		t.Errorf("have %+v", o)
	}
}

func TestServersFollowEndpointsAndNodes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Service)
		slices []*discoveryv1.EndpointSlice
		nodes  []*corev1.Node
		want   string
		event  string
	}{
		"weights are numbers of ready endpoints": {
			slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ready"), endpoint(2, "10.9.0.2", "ready"), endpoint(1, "10.9.0.3", "ready"), endpoint(1, "10.9.0.4", "down"))},
			want:   "n1=10.0.0.1*2 active, n2=10.0.0.2*1 active"},
		"endpoints count once": {
			slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ready")), slice("web", endpoint(1, "10.9.0.1", "ready")), slice("web", endpoint(1, "fd09::1", "ready"))},
			want:   "n1=10.0.0.1*1 active"},
		"an ending endpoint that serves drains its node": {
			slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ready"), endpoint(2, "10.9.0.2", "ending"), endpoint(3, "10.9.0.3", "ended"))},
			want:   "n1=10.0.0.1*1 active, n2=10.0.0.2*1 draining"},
		"a node with a ready endpoint, too, is active": {
			slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ending"), endpoint(1, "10.9.0.2", "ready"))},
			want:   "n1=10.0.0.1*1 active"},
		"where all end, those that serve go on": {
			slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ending"), endpoint(2, "10.9.0.2", "ended"))},
			want:   "n1=10.0.0.1*1 active"},
		"an excluded node drains": {
			slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ready"), endpoint(2, "10.9.0.2", "ready"))}, nodes: []*corev1.Node{node(1, out), node(2)},
			want: "n1=10.0.0.1*1 draining, n2=10.0.0.2*1 active"},
		"all are excluded": {
			slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ready"))}, nodes: []*corev1.Node{node(1, out)},
			want: "n1=10.0.0.1*1 draining", event: "web NodesExcluded: no node takes new connections"},
		"where the only ready ones are excluded, ending ones go on": {
			slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ready"), endpoint(2, "10.9.0.2", "ending"))}, nodes: []*corev1.Node{node(1, out), node(2)},
			want: "n1=10.0.0.1*1 draining, n2=10.0.0.2*1 active"},
		"a node that is gone": {
			slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ready"), endpoint(9, "10.9.0.2", "ready"))},
			want:   "n1=10.0.0.1*1 active"},
		"a node without an address": {
			slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ready"), endpoint(2, "10.9.0.2", "ready"))},
			nodes:  []*corev1.Node{node(1), node(2, func(n *corev1.Node) { n.Status.Addresses = n.Status.Addresses[:2] })},
			want:   "n1=10.0.0.1*1 active", event: "web Node: n2 has no InternalIP"},
		"the family of the Service": {
			change: families(corev1.IPFamilyPolicySingleStack, corev1.IPv6Protocol), slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "fd09::1", "ready"))},
			want: "n1=fd00::1*1 active"},
		"the other family, where a node has no other": {
			change: families(corev1.IPFamilyPolicySingleStack, corev1.IPv6Protocol), slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "fd09::1", "ready"))},
			nodes: []*corev1.Node{node(1, func(n *corev1.Node) { n.Status.Addresses = n.Status.Addresses[:3] })},
			want:  "n1=10.0.0.1*1 active"},
		"segment routing needs IPv6": {
			change: annotated("forward", "srv6"), slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ready"), endpoint(2, "10.9.0.2", "ready"))},
			nodes: []*corev1.Node{node(1), node(2, func(n *corev1.Node) { n.Status.Addresses = n.Status.Addresses[:3] })},
			want:  "n1=fd00::1*1 active", event: "of IPv6, which forward: srv6 needs"},
		"no condition means ready, no node none": {
			slices: []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "unset"), discoveryv1.Endpoint{Addresses: []string{"10.9.0.2"}})},
			want:   "n1=10.0.0.1*1 active"},
		"names of hosts are no addresses": {
			slices: []*discoveryv1.EndpointSlice{{ObjectMeta: slice("web").ObjectMeta, AddressType: discoveryv1.AddressTypeFQDN, Endpoints: []discoveryv1.Endpoint{endpoint(1, "a.example", "ready")}}}},
		"nobody": {},
	} {
		t.Run(name, func(t *testing.T) {
			in := one(service("web"))
			if c.change != nil {
				c.change(in.Services[0])
			}
			if in.Slices = c.slices; c.nodes != nil {
				in.Nodes = c.nodes
			}
			o := Map(options(t), in)
			if have := serversText(find(t, o, "default:web:tcp")); have != c.want {
				t.Errorf("have %s, not %s", have, c.want)
			}
			if all := strings.Join(events(o), "\n"); (c.event == "") != (all == "") || !strings.Contains(all, c.event) || o.Refused > 0 {
				t.Errorf("events are %s, not %s", all, c.event)
			}
		})
	}
}

// Promise: An empty source takes away no last server of a service: its servers stay, and an Event says so.
func TestTheLastServersStayWhenNoEndpointIsKnown(t *testing.T) {
	in := one(service("web"))
	in.Slices[0].Endpoints = append(in.Slices[0].Endpoints, endpoint(2, "10.9.0.2", "ready"))
	in.Fleet = after(Map(options(t), in))
	for name, empty := range map[string]func(*Input){
		"no slices":          func(in *Input) { in.Slices = nil },
		"slices without any": func(in *Input) { in.Slices = []*discoveryv1.EndpointSlice{slice("web")} },
		"no nodes":           func(in *Input) { in.Nodes = nil },
		"nobody serves": func(in *Input) {
			in.Slices = []*discoveryv1.EndpointSlice{slice("web", endpoint(1, "10.9.0.1", "ended"))}
		},
		"and another settings": func(in *Input) { in.Slices = nil; in.Services[0] = service("web", annotated("dispatch", "maglev")) },
		"and wrong ones":       func(in *Input) { in.Slices = nil; in.Services[0] = service("web", annotated("dispach", "maglev")) },
	} {
		in := in
		in.Services = slices.Clone(in.Services)
		empty(&in)
		o := Map(options(t), in)
		if have := serversText(find(t, o, "default:web:tcp")); have != "n1=10.0.0.1*1 active, n2=10.0.0.2*1 active" {
			t.Errorf("%s: have %s", name, have)
		}
		if all := strings.Join(events(o), "\n"); !strings.Contains(all, "web ServersKept: no endpoint is ready or serving on a node: default:web:tcp keeps its last servers, n1, n2") || !slices.Equal(o.Kept, []string{"default:web:tcp"}) {
			t.Errorf("%s: %s, kept %q", name, all, o.Kept)
		}
	}
	in.Slices = []*discoveryv1.EndpointSlice{slice("web", endpoint(3, "10.9.0.3", "ready"))}
	if have := serversText(find(t, Map(options(t), in), "default:web:tcp")); have != "n3=10.0.0.3*1 active" {
		t.Errorf("another one: have %s", have)
	}
}

// Promise: A source that has no Service at all any more removes none from the fleet; a Service that is deleted leaves it.
func TestServicesLeaveTheFleetWhenTheyAreDeletedNotWhenAllVanish(t *testing.T) {
	web, mail := service("web"), service("mail")
	in := Input{Services: []*corev1.Service{web, mail}}
	in.Fleet = after(Map(options(t), in), model.Service{Name: "people's", VIP: netip.MustParseAddr("198.51.100.1"), Ports: []uint16{80}, Protocol: model.ProtocolTCP})
	leaving := func(s *corev1.Service) *corev1.Service {
		s = s.DeepCopy()
		s.DeletionTimestamp, s.Finalizers = &metav1.Time{Time: began}, []string{"other/finalizer", DefaultClass}
		return s
	}
	another := func(s *corev1.Service) *corev1.Service {
		s = s.DeepCopy()
		s.Finalizers, s.Spec.Type, s.Spec.LoadBalancerClass = []string{DefaultClass}, corev1.ServiceTypeClusterIP, nil
		return s
	}
	foreign := service("web", func(s *corev1.Service) { *s.Spec.LoadBalancerClass = "other/class" })
	for name, c := range map[string]struct {
		services []*corev1.Service
		left     string
		vanished int
	}{
		"both are there":             {[]*corev1.Service{web, mail}, "default:mail:tcp default:web:tcp", 0},
		"one is deleted":             {[]*corev1.Service{leaving(web), mail}, "default:mail:tcp", 0},
		"one is gone":                {[]*corev1.Service{mail}, "default:mail:tcp", 0},
		"the last one is deleted":    {[]*corev1.Service{leaving(web)}, "", 0},
		"the last one changes":       {[]*corev1.Service{another(web)}, "", 0},
		"all are gone":               {nil, "default:mail:tcp default:web:tcp", 2},
		"all but those of others":    {[]*corev1.Service{foreign}, "default:mail:tcp default:web:tcp", 2},
		"one is of another type now": {[]*corev1.Service{another(web), mail}, "default:mail:tcp", 0},
	} {
		in.Services = c.services
		o := Map(options(t), in)
		var left []string
		for _, s := range o.Services {
			left = append(left, s.Name)
		}
		if have := strings.Join(left, " "); have != c.left || len(o.Vanished) != c.vanished {
			t.Errorf("%s: left are %s, vanished %q", name, have, o.Vanished)
		}
		for _, object := range o.Objects {
			if gone := object.Service.DeletionTimestamp != nil || object.Service.Spec.LoadBalancerClass == nil; object.Finalized == gone || (object.Addresses == nil) != gone {
				t.Errorf("%s: %+v", name, object)
			}
		}
	}
}

func TestPortsOfTCPAndUDPAreTwoServices(t *testing.T) {
	tcp := func(port int32) corev1.ServicePort { return corev1.ServicePort{Port: port} }
	dns := service("dns", ports(tcp(53), tcp(853), corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP}, corev1.ServicePort{Port: 9, Protocol: corev1.ProtocolSCTP}))
	o := Map(options(t), one(dns))
	one, other := find(t, o, "default:dns:tcp"), find(t, o, "default:dns:udp")
	if one.PortsText() != "53,853" || other.PortsText() != "53" || one.VIP != other.VIP || other.Affinity != model.AffinityHash || other.Dispatch != model.DispatchMaglev {
		t.Errorf("have %+v and %+v", one, other)
	}
	if all := events(o); len(all) != 1 || all[0] != "dns Port: port 9 is of SCTP: load balancers forward TCP and UDP alone" {
		t.Errorf("events: %q", all)
	}
	many := service("many")
	many.Spec.Ports = nil
	for port := int32(5000); port < 5020; port++ {
		many.Spec.Ports = append(many.Spec.Ports, tcp(port))
	}
	many.Spec.Ports = append(many.Spec.Ports, tcp(80))
	if s := find(t, Map(options(t), Input{Services: []*corev1.Service{many}}), "default:many:tcp"); s.PortsText() != "80,5000-5019" {
		t.Errorf("have %s", s.PortsText())
	}
}

func TestWhatAServiceAsksForIsHadOrRefused(t *testing.T) {
	cluster := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster }
	sources := func(list ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = list }
	}
	sticky := func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	for name, c := range map[string]struct {
		change []func(*corev1.Service)
		holds  func(*model.Service) bool // nil: it is refused
		event  string
	}{
		"sessionAffinity":             {[]func(*corev1.Service){sticky}, func(s *model.Service) bool { return s.BySource() && s.Dispatch == model.DispatchMaglev }, ""},
		"sessionAffinity and another": {[]func(*corev1.Service){sticky, annotated("dispatch", "rr")}, nil, "Invalid: tcp: placement.over: "},
		"sources": {[]func(*corev1.Service){sources("10.0.0.0/8", "192.0.2.7", "fd00::/8", "10.1.0.0/8")}, func(s *model.Service) bool {
			return fmt.Sprint(s.Allow) == "[10.0.0.0/8 192.0.2.7/32]"
		}, ""},
		"sources of the other family": {[]func(*corev1.Service){sources("fd00::/8")}, nil, "nobody could connect"},
		"wrong sources":               {[]func(*corev1.Service){sources("10.0.0.0/99")}, nil, "spec.loadBalancerSourceRanges[0]"},
		"Cluster":                     {[]func(*corev1.Service){cluster}, nil, "TrafficPolicy: spec.externalTrafficPolicy is Cluster"},
		"only SCTP":                   {[]func(*corev1.Service){ports(corev1.ServicePort{Port: 9, Protocol: corev1.ProtocolSCTP})}, nil, "none is of TCP or UDP"},
		"a field":                     {[]func(*corev1.Service){annotated("dispatch", "p2c")}, func(s *model.Service) bool { return s.Dispatch == model.DispatchP2C }, ""},
		"a field in a section":        {[]func(*corev1.Service){annotated("health.interval", "5s")}, func(s *model.Service) bool { return s.Health.Interval == model.Duration(5*time.Second) }, ""},
		"another check":               {[]func(*corev1.Service){annotated("health.check", "tcp")}, func(s *model.Service) bool { return s.Health.Port == 0 && s.Health.Path == "" }, ""},
		"no check":                    {[]func(*corev1.Service){func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 0 }}, func(s *model.Service) bool { return s.Health.Check == model.CheckNone }, ""},
		"a field of one protocol":     {[]func(*corev1.Service){annotated("udp.dispatch", "hash")}, func(s *model.Service) bool { return s.Dispatch == model.DispatchWRR }, ""},
		"rr":                          {[]func(*corev1.Service){annotated("dispatch", "rr")}, func(s *model.Service) bool { return s.Dispatch == model.DispatchRR }, ""},
		"a typing error":              {[]func(*corev1.Service){annotated("dispach", "p2c")}, nil, "ballast.io/dispach: there is no such setting: did you mean dispatch?"},
		"no such setting":             {[]func(*corev1.Service){annotated("colour", "red")}, nil, "ballast.io/colour: there is no such setting: use a key of a service"},
		"a wrong value":               {[]func(*corev1.Service){annotated("dispatch", "fast")}, nil, "ballast.io/dispatch: "},
		"no value":                    {[]func(*corev1.Service){annotated("dispatch", "")}, nil, "ballast.io/dispatch: empty"},
		"a contradiction":             {[]func(*corev1.Service){annotated("affinity", "hash"), annotated("dispatch", "rr")}, nil, "Invalid: tcp: dispatch: "},
		"several at once":             {[]func(*corev1.Service){annotated("dispach", "p2c"), annotated("colour", "red")}, nil, "; ballast.io/dispach"},
		"a program":                   {[]func(*corev1.Service){annotated("health.check", "exec")}, nil, "it would run a program on load balancers"},
		"a command":                   {[]func(*corev1.Service){annotated("health.command", "id")}, nil, "it would run a program on load balancers"},
		"a URL":                       {[]func(*corev1.Service){annotated("load.endpoint", "http://169.254.169.254/")}, nil, "it would have every node ask a URL"},
		"through":                     {[]func(*corev1.Service){annotated("return", "through")}, nil, "nodes answer clients themselves"},
		"nat":                         {[]func(*corev1.Service){annotated("forward", "nat")}, nil, "nodes answer clients themselves"},
		"session":                     {[]func(*corev1.Service){annotated("session", "tls")}, nil, "needs sockets of the node"},
		"a field of session":          {[]func(*corev1.Service){annotated("session_clients", "9")}, nil, "needs sockets of the node"},
		"a SYN proxy":                 {[]func(*corev1.Service){annotated("syn_limit", "9")}, nil, "needs sockets of the node"},
		"a large table":               {[]func(*corev1.Service){annotated("table.entries", "1000000000")}, nil, "operators of the fleet decide on memory of load balancers"},
		"a table":                     {[]func(*corev1.Service){annotated("affinity", "table")}, nil, "operators of the fleet decide on memory of load balancers"},
		"many slots":                  {[]func(*corev1.Service){annotated("table_slots", "65521")}, nil, "it follows from the number of nodes"},
		"mptcp":                       {[]func(*corev1.Service){annotated("mptcp.first_port", "9")}, nil, "the node translates connections to pods"},
		"the name":                    {[]func(*corev1.Service){annotated("name", "x")}, nil, "it follows from the Service's namespace and name"},
		"the owner":                   {[]func(*corev1.Service){annotated("owner", "x")}, nil, "it is the program that keeps the service"},
		"allow":                       {[]func(*corev1.Service){annotated("allow", "10.0.0.0/8")}, nil, "use spec.loadBalancerSourceRanges"},
		"ports":                       {[]func(*corev1.Service){annotated("ports", "81")}, nil, "they follow from spec.ports"},
		"other people's":              {[]func(*corev1.Service){func(s *corev1.Service) { s.Annotations["example.com/x"] = "y" }}, func(s *model.Service) bool { return true }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := Map(options(t), one(service("web", c.change...)))
			all := strings.Join(events(o), "\n")
			if c.holds == nil {
				if len(o.Services) != 0 || o.Refused != 1 || !strings.Contains(all, c.event) || addresses(o, "web") != "" || o.Objects[0].Finalized {
					t.Errorf("have %+v, events %s", o, all)
				}
			} else if s := find(t, o, "default:web:tcp"); !c.holds(s) || all != "" || o.Refused != 0 {
				t.Errorf("have %+v, events %s", s, all)
			}
			// One that the fleet has goes on with its settings and gets servers as they are now.
			in := one(service("web"))
			in.Fleet = after(Map(options(t), in))
			in.Services[0] = service("web", c.change...)
			in.Slices[0] = slice("web", endpoint(2, "10.9.0.2", "ready"))
			o = Map(options(t), in)
			s := find(t, o, "default:web:tcp")
			if serversText(s) != "n2=10.0.0.2*1 active" || addresses(o, "web") != "203.0.113.0" || c.holds == nil && (s.Dispatch != model.DispatchWRR || o.Refused != 1) {
				t.Errorf("have %+v with %s, events %q", s, serversText(s), events(o))
			}
		})
	}
}

// Promise: An affinity annotation that would break connections of a Service is not applied unless another one says of what affinity; servers follow meanwhile.
func TestAnAffinityThatBreaksConnectionsIsAppliedWhenThatIsMeant(t *testing.T) {
	changed := func(before string, change ...func(*corev1.Service)) Output {
		in := one(service("web", annotated("dispatch", "maglev"), annotated("affinity", before)))
		in.Fleet = after(Map(options(t), in))
		in.Services[0] = service("web", append(change, annotated("dispatch", "maglev"))...)
		in.Slices[0] = slice("web", endpoint(2, "10.9.0.2", "ready"))
		return Map(options(t), in)
	}
	for name, c := range map[string]struct {
		before string
		change []func(*corev1.Service)
		want   model.Affinity
		event  string
	}{
		"not meant":                 {"cookie", []func(*corev1.Service){annotated("affinity", "hash")}, model.AffinityCookie, "affinity cookie -> hash: of its connections some break: "},
		"meant":                     {"cookie", []func(*corev1.Service){annotated("affinity", "hash"), annotated("replace-affinity", "cookie")}, model.AffinityHash, ""},
		"meant of another one":      {"cookie", []func(*corev1.Service){annotated("affinity", "hash"), annotated("replace-affinity", "hash")}, model.AffinityCookie, "ballast.io/replace-affinity: cookie"},
		"the annotation is removed": {"hash", nil, model.AffinityHash, "affinity hash -> cookie: of its connections all break: "},
		"nothing breaks":            {"hash", []func(*corev1.Service){annotated("affinity", "local-table")}, model.AffinityLocal, ""},
		"it said so before":         {"hash", []func(*corev1.Service){annotated("affinity", "hash"), annotated("replace-affinity", "cookie")}, model.AffinityHash, ""},
	} {
		o := changed(c.before, c.change...)
		s, all := find(t, o, "default:web:tcp"), strings.Join(events(o), "\n")
		if s.Affinity != c.want || serversText(s) != "n2=10.0.0.2*1 active" {
			t.Errorf("%s: have affinity %v, servers %s", name, s.Affinity, serversText(s))
		}
		if (c.event == "") != (all == "") || !strings.Contains(all, c.event) {
			t.Errorf("%s: events %q", name, all)
		}
	}
}

func TestNamesAreShortAndOneServicesAlone(t *testing.T) {
	o := Options{Prefix: "prod"}
	long := strings.Repeat("a", 63)
	one, other := o.Name(long, long, model.ProtocolTCP), o.Name(long, long, model.ProtocolUDP)
	if len(one) != 63 || one == other || o.Name("a", "b", model.ProtocolTCP) != "prod:a:b:tcp" {
		t.Errorf("have %s and %s", one, other)
	}
	in := Input{Services: []*corev1.Service{service(long)}}
	if have := Map(options(t), in); len(have.Services) != 1 {
		t.Errorf("events: %q", events(have))
	}
}
