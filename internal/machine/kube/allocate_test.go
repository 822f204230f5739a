package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

var (
	four = corev1.IPv4Protocol
	six  = corev1.IPv6Protocol
)

func port(number int32) func(*corev1.Service) { return ports(corev1.ServicePort{Port: number}) }

func TestServicesGetAddressesOfTheirFamiliesAndPools(t *testing.T) {
	o := options(t)
	o.Pools = append(o.Pools, Pool{Name: "special", ByRequest: true, Ranges: ranges(t, "192.0.2.10-192.0.2.11")})
	people := model.Service{Name: "people's", VIP: netip.MustParseAddr("203.0.113.0"), Ports: []uint16{9}, Protocol: model.ProtocolTCP}
	for name, c := range map[string]struct {
		services []*corev1.Service
		want     string // of each, by name
		event    string
	}{
		"the next free one":  {[]*corev1.Service{service("a"), service("b", younger(1))}, "a=203.0.113.1 b=203.0.113.2", ""},
		"older ones first":   {[]*corev1.Service{service("a", younger(1)), service("b")}, "a=203.0.113.2 b=203.0.113.1", ""},
		"IPv6":               {[]*corev1.Service{service("a", families(corev1.IPFamilyPolicySingleStack, six))}, "a=2001:db8::", ""},
		"both":               {[]*corev1.Service{service("a", families(corev1.IPFamilyPolicyRequireDualStack, six, four))}, "a=2001:db8:: 203.0.113.1", ""},
		"a pool":             {[]*corev1.Service{service("a", annotated("pool", "special"))}, "a=192.0.2.10", ""},
		"no such pool":       {[]*corev1.Service{service("a", annotated("pool", "none"))}, "a=", `a NoAddress: there is no pool "none": use one of public, special`},
		"prefers both":       {[]*corev1.Service{service("a", annotated("pool", "special"), families(corev1.IPFamilyPolicyPreferDualStack, four, six))}, "a=192.0.2.10", ""},
		"requires both":      {[]*corev1.Service{service("a", annotated("pool", "special"), families(corev1.IPFamilyPolicyRequireDualStack, four, six))}, "a=", "no IPv6 address is free in 1 pool (special)"},
		"requested":          {[]*corev1.Service{service("a", annotated("vip", "203.0.113.3"))}, "a=203.0.113.3", ""},
		"by the old field":   {[]*corev1.Service{service("a", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.11" })}, "a=192.0.2.11", ""},
		"several":            {[]*corev1.Service{service("a", annotated("vips", "203.0.113.3, 192.0.2.11"))}, "a=203.0.113.3 192.0.2.11", ""},
		"of no pool":         {[]*corev1.Service{service("a", annotated("vip", "192.0.2.1"))}, "a=", "192.0.2.1 is requested, and no pool has it"},
		"no address":         {[]*corev1.Service{service("a", annotated("vip", "web"))}, "a=", `ballast.io/vip: "web" is not an IP address`},
		"of another family":  {[]*corev1.Service{service("a", annotated("vip", "2001:db8::1"))}, "a=", "and the Service has no IPv6 (spec.ipFamilies)"},
		"people's":           {[]*corev1.Service{service("a", annotated("vip", "203.0.113.0"))}, "a=", "203.0.113.0 is an address of service people's of the fleet"},
		"another one's":      {[]*corev1.Service{service("a", annotated("vip", "203.0.113.3")), service("b", younger(1), port(81), annotated("vip", "203.0.113.3"))}, "a=203.0.113.3 b=", "b NoAddress: 203.0.113.3 is the address of Service default/a"},
		"shared":             {[]*corev1.Service{service("a", annotated("sharing-key", "x")), service("b", younger(1), port(81), annotated("sharing-key", "x"))}, "a=203.0.113.1 b=203.0.113.1", ""},
		"shared by request":  {[]*corev1.Service{service("a", annotated("sharing-key", "x")), service("b", younger(1), port(81), annotated("sharing-key", "x"), annotated("vip", "203.0.113.1"))}, "a=203.0.113.1 b=203.0.113.1", ""},
		"other keys":         {[]*corev1.Service{service("a", annotated("sharing-key", "x")), service("b", younger(1), port(81), annotated("sharing-key", "y"))}, "a=203.0.113.1 b=203.0.113.2", ""},
		"one port":           {[]*corev1.Service{service("a", annotated("sharing-key", "x")), service("b", younger(1), annotated("sharing-key", "x"))}, "a=203.0.113.1 b=203.0.113.2", ""},
		"one port, the same": {[]*corev1.Service{service("a", annotated("sharing-key", "x")), service("b", younger(1), annotated("sharing-key", "x"), annotated("vip", "203.0.113.1"))}, "a=203.0.113.1 b=", "which has port 80/tcp, too"},
		"exhausted":          {[]*corev1.Service{service("a"), service("b", younger(1)), service("c", younger(2)), service("d", younger(3))}, "a=203.0.113.1 b=203.0.113.2 c=203.0.113.3 d=", "d NoAddress: no IPv4 address is free in 1 pool (public): add addresses to a pool, or delete Services"},
		"status":             {[]*corev1.Service{service("a"), service("b", younger(1), status("203.0.113.1"))}, "a=203.0.113.2 b=203.0.113.1", ""},
		"a status twice":     {[]*corev1.Service{service("a", status("203.0.113.1")), service("b", younger(1), status("203.0.113.1"))}, "a=203.0.113.1 b=203.0.113.2", ""},
		"a forged status":    {[]*corev1.Service{service("a", status("198.51.100.1"))}, "a=203.0.113.1", ""},
		"a status of people": {[]*corev1.Service{service("a", status("203.0.113.0"))}, "a=203.0.113.1", ""},
	} {
		out := Map(o, Input{Services: c.services, Fleet: []model.Service{people}})
		var have []string
		for _, object := range out.Objects {
			have = append(have, object.Service.Name+"="+strings.Trim(fmt.Sprint(object.Addresses), "[]"))
		}
		if got := strings.Join(have, " "); got != c.want {
			t.Errorf("%s: %s, not %s", name, got, c.want)
		}
		if all := strings.Join(events(out), "\n"); (all == "") != (c.event == "") || !strings.Contains(all, c.event) {
			t.Errorf("%s: events %s, not %s", name, all, c.event)
		}
	}
}

func TestAddressesMoveOnlyByRequest(t *testing.T) {
	o := options(t)
	in := Input{Services: []*corev1.Service{service("a"), service("b", younger(1))}}
	in.Fleet = after(Map(o, in))
	moved := slices.Clone(in.Services)
	moved[0] = service("a", annotated("vip", "203.0.113.3"))
	for name, c := range map[string]struct {
		options  Options
		services []*corev1.Service
		a        string
	}{
		"again":                        {o, in.Services, "203.0.113.0"},
		"an older one comes":           {o, append(slices.Clone(in.Services), service("0", younger(-1))), "203.0.113.0"},
		"a status says otherwise":      {o, append([]*corev1.Service{service("a", status("203.0.113.2"))}, in.Services[1:]...), "203.0.113.0"},
		"another one's status does":    {o, append(slices.Clone(in.Services), service("0", younger(-1), status("203.0.113.0"))), "203.0.113.0"},
		"another one requests it":      {o, append(slices.Clone(in.Services), service("0", younger(-1), annotated("vip", "203.0.113.0"))), "203.0.113.0"},
		"its pool has it no more":      {Options{Class: o.Class, Owner: o.Owner, Pools: []Pool{{Name: "other", Ranges: ranges(t, "192.0.2.0/30")}}}, in.Services, "203.0.113.0"},
		"it requests another":          {o, moved, "203.0.113.3"},
		"it requests another one's":    {o, append([]*corev1.Service{service("a", annotated("vip", "203.0.113.1"))}, in.Services[1:]...), "203.0.113.0"},
		"it requests it by pool":       {o, append([]*corev1.Service{service("a", annotated("pool", "public"))}, in.Services[1:]...), "203.0.113.0"},
		"it wants IPv6, too":           {o, append([]*corev1.Service{service("a", families(corev1.IPFamilyPolicyPreferDualStack, four, six))}, in.Services[1:]...), "203.0.113.0 2001:db8::"},
		"it shares, and nobody else":   {o, append([]*corev1.Service{service("a", annotated("sharing-key", "x"))}, in.Services[1:]...), "203.0.113.0"},
		"its annotations are mistaken": {o, append([]*corev1.Service{service("a", annotated("vips", "203.0.113.3"), annotated("colour", "red"))}, in.Services[1:]...), "203.0.113.0"},
	} {
		now := in
		now.Services = c.services
		if have := addresses(Map(c.options, now), "a"); have != c.a {
			t.Errorf("%s: %s, not %s", name, have, c.a)
		}
	}
}

func TestPoolsAreReadAndCounted(t *testing.T) {
	for text, want := range map[string]string{"203.0.113.0/30": "203.0.113.0-203.0.113.3", "203.0.113.8": "203.0.113.8", "203.0.113.8 - 203.0.113.9": "203.0.113.8-203.0.113.9",
		"2001:db8::/120": "2001:db8::-2001:db8::ff", "203.0.113.1/30": "", "203.0.113.9-203.0.113.8": "", "203.0.113.9-2001:db8::": "", "x": "", "": "", "fe80::1%eth0": ""} {
		r, err := ParseRange(text)
		if have := r.String(); (err == nil) != (want != "") || err == nil && have != want {
			t.Errorf("%q: %s, %v", text, have, err)
		}
	}
	for want, pools := range map[string][]Pool{
		"pools[0].name: missing":      {{Ranges: ranges(t, "192.0.2.1")}},
		"pools[0].addresses: missing": {{Name: "a"}},
		"pools[1].name: ":             {{Name: "a", Ranges: ranges(t, "192.0.2.1")}, {Name: "a", Ranges: ranges(t, "192.0.2.2")}},
		"pools[1].addresses[0]: ":     {{Name: "a", Ranges: ranges(t, "192.0.2.0/24")}, {Name: "b", Ranges: ranges(t, "192.0.2.2")}},
		"pools[0].addresses[1]: ":     {{Name: "a", Ranges: ranges(t, "192.0.2.0/24", "192.0.2.255-192.0.3.1")}},
	} {
		if err := CheckPools(pools); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
	o := options(t)
	if err := CheckPools(o.Pools); err != nil {
		t.Error(err)
	}
	use := Map(o, Input{Services: []*corev1.Service{service("a"), service("b", families(corev1.IPFamilyPolicyRequireDualStack, four, six))}}).Pools
	if len(use) != 1 || use[0] != (PoolUse{"public", 8, 3}) {
		t.Errorf("have %+v", use)
	}
}

// world is a cluster that changes at random, and the fleet that follows it.
type world struct {
	*rapid.T
	Options
	in   Input
	born int
}

func (w *world) draw(what string, most int) int { return rapid.IntRange(0, most).Draw(w.T, what) }

// step changes one thing.
func (w *world) step() {
	switch w.draw("what changes", 6) {
	case 0:
		w.born++
		var change []func(*corev1.Service)
		change = append(change, younger(w.born), port(int32(80+w.draw("port", 2))))
		if w.draw("shares", 2) == 0 {
			change = append(change, annotated("sharing-key", "x"))
		}
		if w.draw("both families", 3) == 0 {
			change = append(change, families(corev1.IPFamilyPolicyPreferDualStack, four, six))
		}
		if w.draw("requests", 5) == 0 {
			change = append(change, annotated("vip", fmt.Sprintf("203.0.113.%d", w.draw("address", 4))))
		}
		w.in.Services = append(slices.Clone(w.in.Services), service(fmt.Sprint("s", w.born), change...))
	case 1:
		if len(w.in.Services) > 1 { // finalizers show the deletion of the last one
			i := w.draw("deleted", len(w.in.Services)-1)
			w.in.Services = slices.Delete(slices.Clone(w.in.Services), i, i+1)
		}
	case 2:
		w.in.Slices = nil
	case 3:
		for _, s := range w.in.Services {
			if w.draw("endpoints of "+s.Name, 1) == 0 {
				w.in.Slices = append(w.in.Slices, slice(s.Name, endpoint(1+w.draw("node", 2), "10.9.0.1", []string{"ready", "ending", "ended"}[w.draw("state", 2)])))
			}
		}
	case 4:
		w.in.Nodes = []*corev1.Node{node(1), node(2), node(3)}[:w.draw("nodes", 3)]
	case 6: // a mistake is made, or mended
		if len(w.in.Services) > 0 {
			i := w.draw("mistaken", len(w.in.Services)-1)
			w.in.Services = slices.Clone(w.in.Services)
			w.in.Services[i] = w.in.Services[i].DeepCopy()
			if _, wrong := w.in.Services[i].Annotations["ballast.io/colour"]; wrong {
				delete(w.in.Services[i].Annotations, "ballast.io/colour")
			} else {
				w.in.Services[i].Annotations["ballast.io/colour"] = "red"
			}
		}
	case 5: // the order of a cache is nobody's
		w.in.Services = slices.Clone(w.in.Services)
		slices.Reverse(w.in.Services)
	}
}

// Promise: Addresses stay with their Service, and a service that has servers keeps at least one, whatever a cluster reports.
func TestAddressesAndLastServersStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{T: t, Options: Options{Class: DefaultClass, Owner: "kube", Pools: []Pool{
			{Name: "public", Ranges: []Range{{netip.MustParseAddr("203.0.113.0"), netip.MustParseAddr("203.0.113.3")}, {netip.MustParseAddr("2001:db8::"), netip.MustParseAddr("2001:db8::1")}}}}}}
		for range w.draw("steps", 20) {
			w.step()
			out := Map(w.Options, w.in)
			before := map[string]*model.Service{}
			for i := range w.in.Fleet {
				before[w.in.Fleet[i].Name] = &w.in.Fleet[i]
			}
			for i := range out.Services {
				s := &out.Services[i]
				old := before[s.Name]
				if old != nil && (len(old.Servers) > 0 && len(s.Servers) == 0 || !slices.Equal(old.VIPs(), s.VIPs()[:min(len(old.VIPs()), len(s.VIPs()))])) {
					t.Fatalf("%s had %v and %s, and has %v and %s", s.Name, old.VIPs(), serversText(old), s.VIPs(), serversText(s))
				}
				delete(before, s.Name)
			}
			for name := range before {
				if slices.ContainsFunc(w.in.Services, func(s *corev1.Service) bool { return w.Name("default", s.Name, model.ProtocolTCP) == name }) {
					t.Fatalf("%s is gone, and its Service is not", name)
				}
			}
			w.in.Fleet = after(out)
			fleet := model.Fleet{Keys: placeholder, Services: w.in.Fleet}
			if err := fleet.Validate(); err != nil {
				t.Fatalf("the fleet contradicts itself: %v", err)
			}
			for _, s := range w.in.Services { // what is written back
				s.Status.LoadBalancer.Ingress = nil
				if a := addresses(out, s.Name); a != "" {
					status(strings.Fields(a)...)(s)
				}
			}
			if again := Map(w.Options, w.in); !slices.EqualFunc(again.Services, out.Services, func(a, b model.Service) bool {
				return slices.Equal(a.VIPs(), b.VIPs()) && serversText(&a) == serversText(&b)
			}) {
				t.Fatalf("once more gives other services: %v and %v", out.Services, again.Services)
			}
		}
	})
}

// The largest fleet of 4,096 services on 5,000 nodes. What is counted is how much is looked at: a pass must not look at each node for each Service.
func TestTheLargestClusterIsMapped(t *testing.T) {
	o := Options{Class: DefaultClass, Owner: "kube", Pools: []Pool{{Name: "public", Ranges: ranges(t, "10.64.0.0/16")}}}
	large := func(services, nodes int) Input {
		var in Input
		for n := range nodes {
			in.Nodes = append(in.Nodes, node(n+1))
		}
		for i := range services {
			name := fmt.Sprint("s", i)
			in.Services = append(in.Services, service(name, younger(i)))
			var all []discoveryv1.Endpoint
			for j := range 4 {
				all = append(all, endpoint((7*i+j)%nodes+1, fmt.Sprintf("10.9.%d.%d", j, i%256), "ready"))
			}
			in.Slices = append(in.Slices, slice(name, all...))
		}
		return in
	}
	work := func(in Input) float64 {
		var out Output
		allocations := testing.AllocsPerRun(1, func() { out = Map(o, in) })
		if len(out.Services) != len(in.Services) || len(out.Events) > 0 {
			t.Fatalf("%d services of %d, events %.3q", len(out.Services), len(in.Services), events(out))
		}
		in.Fleet = after(out)
		return allocations + testing.AllocsPerRun(1, func() { out = Map(o, in) })
	}
	small, most := work(large(512, 625)), work(large(4096, 5000))
	t.Logf("%.0f allocations for 512 services, %.0f for 4,096", small, most)
	if most > 12*small {
		t.Errorf("8 times the cluster takes %.1f times the allocations", most/small)
	}
	in := large(4096, 5000)
	in.Services = append(in.Services, service("last", younger(9999)))
	if out := Map(o, in); len(out.Services) != 4096 || out.Refused != 1 || !strings.HasPrefix(events(out)[0], "last NoRoom: the fleet has room for 4096 services") {
		t.Errorf("%d services, events %q", len(out.Services), events(out))
	}
	wide := Input{Services: []*corev1.Service{service("wide")}, Nodes: large(1, 5000).Nodes}
	for n := range 5000 {
		wide.Slices = append(wide.Slices, slice("wide", endpoint(n+1, "10.9.0.1", "ready")))
	}
	if s := find(t, Map(o, wide), "default:wide:tcp"); len(s.Servers) != 5000 || s.TableSlots < 5000 || s.Dispatch != model.DispatchMaglev {
		t.Errorf("%d servers, %d slots, %s", len(s.Servers), s.TableSlots, s.Dispatch)
	}
}

// Promise: No Service gets an address that a host has, and a node at the address of a service is no server: neither stops other Services.
func TestAddressesOfHostsAndServicesStayApart(t *testing.T) {
	o := options(t)
	moved := func(n *corev1.Node) {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "203.0.113.1"}}
	}
	neighbor := model.Node{Name: "lb1", BGP: model.BGP{Neighbors: []model.Neighbor{{Address: netip.MustParseAddr("203.0.113.1")}}}}
	theirs := model.Service{Name: "people's", VIP: netip.MustParseAddr("198.51.100.1"), Ports: []uint16{80}, Protocol: model.ProtocolTCP,
		Servers: []model.Server{{Name: "s1", ID: 1, Address: netip.MustParseAddr("203.0.113.1"), Weight: 1}}}
	theirs.ApplyDefaults()
	for whose, c := range map[string]struct {
		change func(*Input)
	}{
		"node n2":                       {func(in *Input) { in.Nodes[1] = node(2, moved) }},
		"server s1 of service people's": {func(in *Input) { in.Fleet = append(in.Fleet, theirs) }},
		"load balancer lb1": {func(in *Input) {
			in.Balancers = []model.Node{{Name: "lb1", Address: netip.MustParseAddr("203.0.113.1")}}
		}},
		"a BGP neighbor of load balancer lb1":  {func(in *Input) { in.Balancers = []model.Node{neighbor} }},
		"server n1 of service default:web:tcp": {func(in *Input) { in.Fleet[0].Servers[0].Address = netip.MustParseAddr("203.0.113.1") }},
	} {
		in := one(service("web"))
		in.Fleet = after(Map(o, in))
		c.change(&in)
		in.Slices = append(in.Slices, slice("web", endpoint(3, "10.9.0.3", "ready")))
		in.Services = append(in.Services, service("other", younger(1)), service("asks", younger(2), annotated("vip", "203.0.113.1")))
		out := Map(o, in)
		if have := addresses(out, "other") + " " + addresses(out, "asks"); have != "203.0.113.2 " {
			t.Errorf("%s: have %s", whose, have)
		}
		if all := strings.Join(events(out), "\n"); all != "asks NoAddress: 203.0.113.1 is the address of "+whose {
			t.Errorf("%s: events %s", whose, all)
		}
		if have := serversText(find(t, out, "default:web:tcp")); have != "n1=10.0.0.1*1 active, n3=10.0.0.3*1 active" {
			t.Errorf("%s: web has %s", whose, have)
		}
		if use := out.Pools[0]; use.Used != 3 {
			t.Errorf("%s: %d addresses are used", whose, use.Used)
		}
	}
	in := one(service("web"))
	in.Services = append(in.Services, service("other", younger(1)))
	in.Fleet = after(Map(o, in))
	in.Nodes[1] = node(2, moved)
	in.Slices = append(in.Slices, slice("web", endpoint(2, "10.9.0.2", "ready"), endpoint(3, "10.9.0.3", "ready")))
	out := Map(o, in)
	if have := serversText(find(t, out, "default:web:tcp")); have != "n1=10.0.0.1*1 active, n3=10.0.0.3*1 active" || addresses(out, "other") != "203.0.113.1" || out.Refused > 0 {
		t.Errorf("a node comes to the address of a service: %s, %s", have, addresses(out, "other"))
	}
	if all := events(out); len(all) != 1 || !strings.HasPrefix(all[0], "web Node: n2 has the address of a service") {
		t.Errorf("a node comes to the address of a service: events %q", all)
	}
}

// Promise: One that goes on with forward: srv6 reaches nodes by IPv6, also where the Service is of IPv4.
func TestServersByIPv6FollowPodsWhileTheirServiceIsRefused(t *testing.T) {
	in := one(service("web", annotated("forward", "srv6")))
	in.Fleet = after(Map(options(t), in))
	in.Services = []*corev1.Service{service("web", annotated("forward", "srv6"), annotated("colour", "red"))}
	in.Slices = []*discoveryv1.EndpointSlice{slice("web", endpoint(2, "10.9.0.2", "ready"))}
	out := Map(options(t), in)
	if have := serversText(find(t, out, "default:web:tcp")); have != "n2=fd00::2*1 active" || out.Refused != 1 {
		t.Errorf("have %s, events %q", have, events(out))
	}
}

// Promise: What is wrong of both services of a Service takes away the new one of them, in whatever order it is looked at.
func TestANewServiceThatContradictsTheFleetWaitsWhateverElseDoes(t *testing.T) {
	of := &ours{Service: service("dns")}
	for range 100 { // orders of a map
		before := &model.Service{Name: "tcp"}
		m := &mapping{entries: []entry{{Service: *before, of: of, before: before, form: earlier}, {Service: model.Service{Name: "udp"}, of: of}}}
		if m.goBack(named, earlierSettings, map[int][]string{0: {"ports"}, 1: {"ports"}}, nil, "ports"); len(m.entries) != 1 || m.entries[0].Name != "tcp" {
			t.Fatalf("left are %d", len(m.entries))
		}
	}
}

func TestAServiceThatContradictsTheFleetWaitsAlone(t *testing.T) {
	o := options(t)
	wide := func(name string, first int32, change ...func(*corev1.Service)) *corev1.Service { // of 9 ranges of ports
		s := service(name, append(change, annotated("sharing-key", "x"))...)
		s.Spec.Ports = nil
		for i := range int32(9) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: first + 10*i}, corev1.ServicePort{Port: first + 10*i + 1})
		}
		return s
	}
	in := one(wide("web", 1000))
	in.Services = append(in.Services, wide("other", 2000, younger(1)))
	out := Map(o, in)
	if all := strings.Join(events(out), "\n"); len(out.Services) != 1 || out.Refused != 1 || !strings.HasPrefix(all, "other Invalid: default:other:tcp: ports: more than 16 ranges") {
		t.Errorf("both are new: have %v, events %s", out.Services, all)
	}
	narrow := service("other", younger(1), annotated("sharing-key", "x"), port(2000))
	in.Services[1] = narrow
	in.Fleet = after(Map(o, in))
	in.Services[1] = wide("other", 2000, younger(1))
	out = Map(o, in)
	if s := find(t, out, "default:other:tcp"); out.Refused != 1 || s.PortsText() != "2000" {
		t.Errorf("both are there: have %v, events %q", out.Services, events(out))
	}
	foreign := model.Service{Name: "default:web:tcp", VIP: netip.MustParseAddr("198.51.100.1"), Ports: []uint16{80}, Protocol: model.ProtocolTCP}
	out = Map(o, Input{Services: []*corev1.Service{service("web")}, Fleet: []model.Service{foreign}})
	if len(out.Services) != 0 || !strings.Contains(strings.Join(events(out), "\n"), "the fleet has a service default:web:tcp already, which is not of kube") {
		t.Errorf("have %v, events %q", out.Services, events(out))
	}
}
