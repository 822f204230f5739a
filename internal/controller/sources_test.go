package controller

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/controller/report"
	"github.com/ballast-lb/ballast/internal/discovery/discoverytest"
	"github.com/ballast-lb/ballast/internal/doctor"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

func askOften(o *Options) { o.Asking.Least = 20 * time.Millisecond }

// sourcedService is a service whose servers a name has.
func sourcedService(name, domain, resolver string) *ballastv1.Service {
	vip := uint32(1)
	for _, c := range name {
		vip = vip*31%200 + uint32(c)%50
	}
	return &ballastv1.Service{Name: name, Vip: fmt.Sprintf("198.51.100.%d", vip), Ports: []uint32{80}, Source: &ballastv1.ServerSource{From: "dns", Name: &domain, Resolver: &resolver}}
}

// servers are those of a service: "1=10.0.0.1 active".
func serversOf(t *testing.T, client ballastv1connect.FleetClient, service string) string {
	t.Helper()
	answer, err := client.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
	fleettest.Require(t, err)
	var list []string
	for _, s := range answer.Services {
		for _, server := range s.Servers {
			if s.Name == service {
				list = append(list, fmt.Sprintf("%d=%s %s", server.Id, server.Address, server.State))
			}
		}
	}
	return strings.Join(list, ", ")
}

func problemOf(t *testing.T, client ballastv1connect.FleetClient, service string) string {
	t.Helper()
	answer, err := client.ListServers(t.Context(), &ballastv1.ListServersRequest{Service: service})
	fleettest.Require(t, err)
	if len(answer.Sources) != 1 {
		return fmt.Sprint(answer.Sources)
	}
	return answer.Sources[0].Problem
}

// Promise: Servers by a name are the same at all controllers, whoever leads; they and their ids outlive a controller, the source and a restart.
func TestControllersKeepServersAsASourceNamesThem(t *testing.T) {
	names := discoverytest.NewDNS(t, "127.0.0.1:0")
	names.Set(t, "web.example.com. 0 IN A 10.0.0.1", "web.example.com. 0 IN A 10.0.0.2")
	s, ca := storetest.Open(t), fleettest.NewAuthority(t)
	me := ca.Issue(pki.Ctl, "me")
	c1 := startController(t, ca, "c1", "127.0.0.1:0", s, askOften)
	c2 := startController(t, ca, "c2", "127.0.0.1:0", s, askOften)
	one, two := c1.client(me), c2.client(me)
	services := []*ballastv1.Service{}
	for _, name := range []string{"web", "shop", "mail", "ftp"} { // led by one or the other
		services = append(services, sourcedService(name, "web.example.com", names.Address))
	}
	fleettest.Await(t, "the controller takes the file", func() bool {
		_, err := one.Apply(t.Context(), &ballastv1.ApplyRequest{Services: services, Force: true})
		return err == nil
	})
	everywhere := func(want string) {
		t.Helper()
		for _, service := range services {
			for _, client := range []ballastv1connect.FleetClient{one, two} {
				fleettest.Await(t, service.Name+" has "+want, func() bool { return serversOf(t, client, service.Name) == want })
			}
		}
	}
	everywhere("1=10.0.0.1 active, 2=10.0.0.2 active")
	for _, client := range []ballastv1connect.FleetClient{one, two} {
		fleettest.Await(t, "nobody complains", func() bool { return problemOf(t, client, "web") == "" })
	}
	names.Set(t, "web.example.com. 0 IN A 10.0.0.3", "web.example.com. 0 IN A 10.0.0.2")
	everywhere("1=10.0.0.1 draining, 2=10.0.0.2 active, 3=10.0.0.3 active")
	history, err := one.ListChanges(t.Context(), &ballastv1.ListChangesRequest{})
	fleettest.Require(t, err)
	if last := history.Changes[len(history.Changes)-1]; last.Role != string(pki.Controller) || last.Address != "dns web.example.com" {
		t.Errorf("the history names %v", last)
	}
	for what, change := range map[string]func(query, answer *dns.Msg, _ string) *dns.Msg{
		"SERVFAIL": func(_, answer *dns.Msg, _ string) *dns.Msg { answer.Rcode = dns.RcodeServerFailure; return answer },
		"NXDOMAIN": func(_, answer *dns.Msg, _ string) *dns.Msg {
			answer.Rcode, answer.Answer = dns.RcodeNameError, nil
			return answer
		},
		"no A": func(_, answer *dns.Msg, _ string) *dns.Msg { answer.Answer = nil; return answer },
	} {
		names.Change(change)
		want := strings.ReplaceAll(what, "no A", "no AAAA record")
		for _, client := range []ballastv1connect.FleetClient{one, two} {
			fleettest.Await(t, "it says "+want, func() bool {
				problem := problemOf(t, client, "web")
				return strings.Contains(problem, want) && strings.Contains(problem, "its servers stay as they are")
			})
		}
		everywhere("1=10.0.0.1 draining, 2=10.0.0.2 active, 3=10.0.0.3 active")
	}
	c1.stop()
	c3 := startController(t, ca, "c1", "127.0.0.1:0", s, askOften) // its next life, while the source is gone
	one = c3.client(me)
	fleettest.Await(t, "it says that it knows nothing", func() bool { return strings.Contains(problemOf(t, one, "web"), "it has never answered") })
	everywhere("1=10.0.0.1 draining, 2=10.0.0.2 active, 3=10.0.0.3 active")
	names.Change(nil)
	names.Set(t, "web.example.com. 0 IN A 10.0.0.1", "web.example.com. 0 IN A 10.0.0.2", "web.example.com. 0 IN A 10.0.0.3")
	everywhere("1=10.0.0.1 active, 2=10.0.0.2 active, 3=10.0.0.3 active")
}

// Promise: Readiness, problems and metrics of a controller show a source without a good answer, and its age.
func TestABadSourceIsShown(t *testing.T) {
	names := discoverytest.NewDNS(t, "127.0.0.1:0")
	s, ca := storetest.Open(t), fleettest.NewAuthority(t)
	run := t.TempDir()
	c := startController(t, ca, "c1", "127.0.0.1:0", s, func(o *Options) { o.RunDir = run; askOften(o) })
	client := c.client(ca.Issue(pki.Ctl, "me"))
	fleettest.Await(t, "the controller takes the file", func() bool {
		_, err := client.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{sourcedService("web", "web.example.com", names.Address)}, Force: true})
		return err == nil
	})
	local := api.NewClient(api.SocketPath(run, "c1"))
	status := func() (s report.Status) {
		fleettest.Require(t, local.Get(t.Context(), api.PathStatus, &s))
		return s
	}
	metrics := func() string {
		stream, err := local.Stream(t.Context(), api.PathMetrics)
		fleettest.Require(t, err)
		defer stream.Close()
		text, err := io.ReadAll(stream)
		fleettest.Require(t, err)
		return string(text)
	}
	said := func(text string) func() bool {
		return func() bool {
			return strings.Contains(strings.Join(status().Problems, "\n"), "servers of service web from dns web.example.com: "+text)
		}
	}
	fleettest.Await(t, "a problem names the source", said("web.example.com does not exist (NXDOMAIN); it has never answered"))
	if text := metrics(); !strings.Contains(text, `ballast_controller_source_failed{service="web"} 1`) || !strings.Contains(text, `ballast_controller_source_age_seconds{service="web"} `) {
		t.Error("no metric of the source")
	}
	if findings := doctor.Examine(t.Context(), doctor.Options{Instance: "c1", RunDir: run}); !strings.Contains(fmt.Sprint(findings), "servers of service web from dns web.example.com") {
		t.Errorf("doctor says %v", findings)
	}
	names.Set(t, "web.example.com. 0 IN A 10.0.0.1", "web.example.com. 0 IN A 198.51.100.250", "web.example.com. 0 IN A 127.0.0.1")
	fleettest.Await(t, "a problem names what is left out", said("left out: 127.0.0.1: 127.0.0.1 cannot be reached through the network"))
	if have := serversOf(t, client, "web"); have != "1=10.0.0.1 active, 2=198.51.100.250 active" {
		t.Errorf("have %s", have)
	}
	names.Set(t, "web.example.com. 0 IN A 10.0.0.1")
	fleettest.Await(t, "the metric says that all is well", func() bool {
		return strings.Contains(metrics(), `ballast_controller_source_failed{service="web"} 0`)
	})
	_, err := client.RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: "web", Force: true})
	fleettest.Require(t, err)
	fleettest.Await(t, "nobody asks any more", func() bool { return !strings.Contains(metrics(), "controller_source") })
}

// Promise: Servers of Consul and of files are kept as those of a name, by what the controller's host allows; a fleet gives neither URLs nor files of others.
func TestControllersAskConsulAndFiles(t *testing.T) {
	catalogue, dir := discoverytest.NewConsul(t, "127.0.0.1:0"), t.TempDir()
	catalogue.Set(discoverytest.Instance("10.0.0.1", 80, "passing"), discoverytest.Instance("10.0.0.2", 80, "critical"))
	s, ca := storetest.Open(t), fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", s, func(o *Options) { o.Asking.Dir = dir; askOften(o) })
	client := c.client(ca.Issue(pki.Ctl, "me"))
	service := func(name, vip string, source *ballastv1.ServerSource) *ballastv1.Service {
		return &ballastv1.Service{Name: name, Vip: vip, Ports: []uint32{80}, Source: source}
	}
	apply := func(services ...*ballastv1.Service) error {
		_, err := client.Apply(t.Context(), &ballastv1.ApplyRequest{Services: services, Force: true})
		return err
	}
	text := func(s string) *string { return &s }
	fleettest.Await(t, "the controller takes the file", func() bool {
		return apply(service("web", "198.51.100.10", &ballastv1.ServerSource{From: "consul", Service: text("web")}),
			service("shop", "198.51.100.11", &ballastv1.ServerSource{From: "file", Path: text("shop.yaml")})) == nil
	})
	for _, wrong := range []*ballastv1.ServerSource{
		{From: "file", Path: text("/etc/shadow")}, {From: "file", Path: text("../consul/default.yaml")}, {From: "consul", Service: text("web"), Agent: text("../x")},
		{From: "consul", Service: text("web?token=x")}, {From: "consul", Service: text("web"), Datacenter: text("a&token=x")},
	} {
		if apply(service("web", "198.51.100.10", wrong)) == nil {
			t.Errorf("takes %v", wrong)
		}
	}
	says := func(name, want string) {
		t.Helper()
		fleettest.Await(t, name+" says "+want, func() bool {
			problem := problemOf(t, client, name)
			return problem == want || want != "" && strings.Contains(problem, want)
		})
	}
	has := func(name, want string) {
		t.Helper()
		fleettest.Await(t, name+" has "+want, func() bool { return serversOf(t, client, name) == want })
	}
	says("web", "the controller's host must allow the agent of Consul default: read "+dir+"/consul/default.yaml: no such file or directory; it has never answered")
	says("shop", dir+"/files/shop.yaml: no such file or directory; it has never answered")
	if q := catalogue.Queries(); len(q) != 0 {
		t.Errorf("asked without leave: %v", q[0].URL)
	}
	catalogue.Allow(t, dir, "default", "")
	file := dir + "/files/shop.yaml"
	discoverytest.Write(t, file, "- {name: a, address: 10.0.1.1, weight: 5}\n- {address: 10.0.1.2}\n")
	has("web", "1=10.0.0.1 active, 2=10.0.0.2 draining")
	has("shop", "1=10.0.1.1 active, 2=10.0.1.2 active")
	says("web", "")
	says("shop", "")
	catalogue.Set(discoverytest.Instance("10.0.0.2", 80, "passing"))
	discoverytest.Write(t, file, "- {address: 10.0.1.2}\n- {name: c, address: 10.0.1.3}\n")
	has("web", "1=10.0.0.1 draining, 2=10.0.0.2 active")
	has("shop", "1=10.0.1.1 draining, 2=10.0.1.2 active, 3=10.0.1.3 active")
	catalogue.Set()
	discoverytest.Write(t, file, "[]")
	says("web", "it names no server that takes new connections")
	says("shop", "it names no server that takes new connections")
	catalogue.SetToken("x")
	discoverytest.Write(t, file, "- {")
	says("web", "status 403")
	says("shop", "shop.yaml:1: ")
	has("web", "1=10.0.0.1 draining, 2=10.0.0.2 active")
	has("shop", "1=10.0.1.1 draining, 2=10.0.1.2 active, 3=10.0.1.3 active")
}

// Promise: Of controllers that hear different answers, the leader's count; one that takes over adds what it hears, drains nobody at once, and says so.
func TestAnotherLeaderWithOtherAnswersDrainsNobody(t *testing.T) {
	s, ca := storetest.Open(t), fleettest.NewAuthority(t)
	me := ca.Issue(pki.Ctl, "me")
	hears := map[string]string{"c1": "- {address: 10.0.0.1}\n- {address: 10.0.0.2}\n", "c2": "- {address: 10.0.0.2}\n- {address: 10.0.0.3}\n"}
	alive := map[string]*running{}
	start := func(name string) {
		dir := t.TempDir()
		discoverytest.Write(t, dir+"/files/web.yaml", hears[name])
		alive[name] = startController(t, ca, name, "127.0.0.1:0", s, func(o *Options) { o.Asking.Dir = dir; askOften(o) })
	}
	start("c1")
	path := "web.yaml"
	one := alive["c1"].client(me)
	fleettest.Await(t, "the controller takes the file", func() bool {
		_, err := one.Apply(t.Context(), &ballastv1.ApplyRequest{Force: true, Services: []*ballastv1.Service{
			{Name: "web", Vip: "198.51.100.10", Ports: []uint32{80}, Source: &ballastv1.ServerSource{From: "file", Path: &path}}}})
		return err == nil
	})
	fleettest.Await(t, "the only one is heard", func() bool { return serversOf(t, one, "web") == "1=10.0.0.1 active, 2=10.0.0.2 active" })
	names := []string{"c1", "c2"}
	for turn := range 4 {
		next := names[(turn+1)%2]
		if alive[next] == nil {
			start(next)
		}
		client := alive[next].client(me)
		fleettest.Await(t, next+" has answers", func() bool { return !strings.Contains(problemOf(t, client, "web"), "not answered yet") })
		before := names[turn%2]
		alive[before].stop()
		alive[before] = nil
		fleettest.Await(t, next+" leads and says that others stay", func() bool {
			return strings.Contains(problemOf(t, client, "web"), "servers that it has not named since this controller leads the service stay for")
		})
		fleettest.Await(t, next+" drains nobody", func() bool {
			have := serversOf(t, client, "web")
			if strings.Contains(have, "draining") {
				t.Fatalf("turn %d: %s", turn, have)
			}
			return strings.Count(have, "active") == 3
		})
		history, err := client.ListChanges(t.Context(), &ballastv1.ListChangesRequest{})
		fleettest.Require(t, err)
		for _, change := range history.Changes {
			if strings.Contains(fmt.Sprint(change), "drain") {
				t.Fatalf("turn %d: %v", turn, change)
			}
		}
	}
}
