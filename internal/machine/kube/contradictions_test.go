package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ballast-lb/ballast/internal/model"
)

// sharing are Services of one address, each with a port of its own from 80 on.
func sharing(count int) (list []*corev1.Service) {
	for i := range count {
		list = append(list, service(fmt.Sprint("s", i), younger(i), port(int32(80+i)), annotated("sharing-key", "k")))
	}
	return list
}

func valid(t *testing.T, in Input, o Output) {
	t.Helper()
	fleet := model.Fleet{Keys: placeholder, Services: after(o), Nodes: in.Balancers}
	fleet.ApplyDefaults()
	if err := fleet.Validate(); err != nil {
		t.Errorf("controllers would refuse all: %v", err)
	}
}

func portsOfAll(o Output) (text string) {
	for i := range o.Services {
		text += fmt.Sprint(o.Services[i].Name, o.Services[i].Ports, " ")
	}
	return text
}

// Promise: Where a Service goes on as it was because it is invalid, those of its namespace that want its port wait as they were, however many follow each
// other so; those of other namespaces, and the servers of all, change.
func TestServicesThatWaitForEachOtherHoldUpNobodyElse(t *testing.T) {
	for _, count := range []int{2, 3, 7, 12} {
		other := service("other", younger(20), func(s *corev1.Service) { s.Namespace = "elsewhere" })
		in := Input{Services: append(sharing(count), other), Nodes: one(other).Nodes}
		for i := range count {
			in.Slices = append(in.Slices, slice(fmt.Sprint("s", i), endpoint(1, "10.9.0.1", "ready")))
		}
		o := Map(options(t), in)
		if addresses(o, "s0") == "" || addresses(o, "s0") != addresses(o, fmt.Sprint("s", count-1)) {
			t.Fatalf("they share no address: %q", events(o))
		}
		before := portsOfAll(o)
		in.Fleet = after(o)
		for i, s := range in.Services[:count] {
			s.Spec.Ports[0].Port++
			in.Slices[i].Endpoints = []discoveryv1.Endpoint{endpoint(2, "10.9.0.2", "ready")}
		}
		annotated("dispatch", "nonsense")(in.Services[count-1])
		port(443)(other)
		o = Map(options(t), in)
		valid(t, in, o)
		if have, want := portsOfAll(o), strings.Replace(before, "elsewhere:other:tcp[80]", "elsewhere:other:tcp[443]", 1); have != want {
			t.Errorf("%d: have %s, want %s", count, have, want)
		}
		for i := range count {
			if s := find(t, o, fmt.Sprintf("default:s%d:tcp", i)); !strings.HasPrefix(serversText(s), "n2=") {
				t.Errorf("%d: %s keeps its servers: %s", count, s.Name, serversText(s))
			}
			if !slices.ContainsFunc(events(o), func(e string) bool { return strings.HasPrefix(e, fmt.Sprintf("s%d Invalid: ", i)) }) {
				t.Errorf("%d: nobody is told of s%d: %q", count, i, events(o))
			}
		}
		delete(in.Services[count-1].Annotations, AnnotationPrefix+"dispatch")
		o = Map(options(t), in)
		valid(t, in, o)
		if s := find(t, o, "default:s0:tcp"); s.Ports[0] != 81 || o.Refused > 0 {
			t.Errorf("%d: once it is mended: %q", count, events(o))
		}
	}
}

// A service may be looked at in each step, of each round.
func TestAReasonIsSaidOnceHoweverManyStepsFindIt(t *testing.T) {
	of, before := &ours{Service: service("dns")}, &model.Service{Name: "tcp"}
	m := &mapping{entries: []entry{{Service: *before, of: of, before: before, form: earlier}}}
	for _, step := range steps {
		m.goBack(step.circle, step.form, map[int][]string{0: {"ports"}}, map[string]bool{"default": true}, "ports")
	}
	if len(of.why) != 1 || len(m.out.Events) != 1 || m.out.Refused != 1 {
		t.Errorf("reasons %q, events %v, refused %d", of.why, m.out.Events, m.out.Refused)
	}
}

// Promise: A node of the cluster that has the address of a load balancer of the second tier, or of a router, is no server, and its Service says so; all else goes on.
func TestNodesWithAddressesOfLoadBalancersAreNoServers(t *testing.T) {
	in := one(service("web"))
	in.Slices[0].Endpoints = append(in.Slices[0].Endpoints, endpoint(2, "10.9.0.2", "ready"))
	in.Balancers = []model.Node{{Name: "lb1", Tier: model.TierSecond, ID: 1, Address: netip.MustParseAddr("10.0.0.1")}}
	o := Map(options(t), in)
	valid(t, in, o)
	if have := serversText(find(t, o, "default:web:tcp")); !strings.HasPrefix(have, "n2=") || strings.Contains(have, "n1=") {
		t.Errorf("servers are %s", have)
	}
	if said := events(o); len(said) != 1 || !strings.Contains(said[0], "web Node: n1 has the address of load balancer lb1") {
		t.Errorf("people read %q", said)
	}
}

// Promise: What is wrong with load balancers themselves keeps no Service back.
func TestWhatIsWrongWithoutServicesIsNotTheirs(t *testing.T) {
	in := one(service("web"))
	in.Balancers = []model.Node{{Name: "lb1", Tier: model.TierSecond}, {Name: "lb1", Tier: model.TierSecond}}
	if o := Map(options(t), in); len(o.Services) != 1 || o.Refused > 0 {
		t.Errorf("services %d: %q", len(o.Services), events(o))
	}
}
