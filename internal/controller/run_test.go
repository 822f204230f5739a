package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/controller/desired/desiredtest"
	"github.com/ballast-lb/ballast/internal/controller/report"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/metricstest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/etcd"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// running is a controller of a test.
type running struct {
	t       testing.TB
	address string
	stop    func()
}

// startController runs a controller of that name with a store until the test ends, or stop is called.
func startController(t testing.TB, ca *fleettest.Authority, name, listen string, s store.Store, change func(*Options)) *running {
	t.Helper()
	if _, err := os.Stat(filepath.Join(ca.Dir, name+".crt")); err != nil {
		ca.Issue(pki.Controller, name)
	}
	ready := make(chan string, 1)
	o := Options{Name: name, Listen: listen, TLSDir: ca.Dir, Store: s, Timing: fleet.DefaultTiming, Version: "1.2.3", Log: fleettest.Log(t).With("controller", name),
		Ready: func(address string) { ready <- address }}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	r := &running{t: t, stop: sync.OnceFunc(func() { cancel(); fleettest.Require(t, <-ended) })}
	t.Cleanup(r.stop)
	select {
	case r.address = <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	return r
}

// operator is a client of the fleet API.
func (r *running) client(credentials *pki.Credentials) ballastv1connect.FleetClient {
	transport := &http.Transport{TLSClientConfig: credentials.Client()}
	r.t.Cleanup(transport.CloseIdleConnections)
	return ballastv1connect.NewFleetClient(&http.Client{Transport: transport}, "https://"+r.address)
}

func apply(t testing.TB, client ballastv1connect.FleetClient, views ...engine.ServiceView) *ballastv1.ChangeResponse {
	t.Helper()
	request := &ballastv1.ApplyRequest{Force: true}
	for i, v := range views {
		s := api.ServiceToProto(&v.Service)
		s.Vip = fmt.Sprintf("198.51.100.%d", i+1)
		request.Services = append(request.Services, s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), fleettest.Deadline)
	defer cancel()
	var answer *ballastv1.ChangeResponse
	fleettest.Await(t, "the controller knows the state", func() (done bool) { // which it has to read first
		var err error
		if answer, err = client.Apply(ctx, request); connect.CodeOf(err) == connect.CodeUnavailable {
			return false
		}
		fleettest.Require(t, err)
		return true
	})
	return answer
}

// Promise: A load balancer that is cut off from all controllers keeps its state, and takes the complete one when
// it reconnects.
// Also held by TestLosingControllersBreaksNothing.
// Promise: An agent that is cut off from all controllers marks and restores; its reports, and changes of keys and
// servers, are missing meanwhile.
func TestNodesResynchroniseAfterEveryKindOfGap(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), &desiredtest.FaultyStore{Store: storetest.Open(t)}
	operator := ca.Issue(pki.Ctl, "me")
	c := startController(t, ca, "c1", freeAddress(t), s, nil)
	lb := joinAll(t, ca.Issue(pki.LB, "lb1"), c)
	agent := joinAll(t, ca.Issue(pki.Agent, "s2"), c)
	apply(t, c.client(operator), fleettest.Service("web", 1, 2), fleettest.Service("mail", 3))
	fleettest.Await(t, "the load balancer knows all", func() bool { return lb.has(map[string]int{"web": 2, "mail": 1}) })
	fleettest.Await(t, "the agent knows its own", func() bool { return agent.has(map[string]int{"web": 2}) })

	// The store goes, is changed by somebody else, and comes back.
	other := desiredtest.Following(t, s.Store)
	s.Set(true)
	desiredtest.Change(t, other, desiredtest.RemoveServer("web", 1))
	if _, err := c.client(operator).RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: "web"}); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("a change without a store: %v", err)
	}
	if !lb.has(map[string]int{"web": 2, "mail": 1}) || len(lb.joined.Connected()) != 1 {
		t.Error("without the store the load balancer lost something")
	}
	s.Set(false)
	fleettest.Await(t, "the load balancer knows what was missed", func() bool { return lb.has(map[string]int{"web": 1, "mail": 1}) })

	// The controller goes, the fleet is changed, and another life of it comes.
	c.stop()
	fleettest.Await(t, "the load balancer notices", func() bool { return len(lb.joined.Connected()) == 0 })
	desiredtest.Change(t, other, func(f *model.Fleet) {
		fresh := fleettest.Service("new", 2)
		fresh.Service.Ports = []uint16{81}
		f.Services = append(f.Services, fresh.Service)
	})
	if !lb.has(map[string]int{"web": 1, "mail": 1}) {
		t.Error("without the controller the load balancer lost something")
	}
	startController(t, ca, "c1", c.address, s, nil)
	fleettest.Await(t, "the load balancer knows what was missed", func() bool { return lb.has(map[string]int{"web": 1, "mail": 1, "new": 1}) })
	fleettest.Await(t, "the agent knows what was missed", func() bool { return agent.has(map[string]int{"web": 1, "new": 1}) })

	// The stream is cut in the midst of changes.
	desiredtest.Change(t, other, desiredtest.RemoveServer("web", 2))
	lb.joined.Rejoin()
	desiredtest.Change(t, other, func(f *model.Fleet) {
		web := f.Service("web")
		web.Servers = append(web.Servers, fleettest.Service("", 5, 6).Service.Servers...)
	})
	fleettest.Await(t, "the load balancer knows everything after its stream was cut", func() bool { return lb.has(map[string]int{"web": 2, "mail": 1, "new": 1}) })
	fleettest.Await(t, "the agent still hears of the service that it leaves", func() bool { return agent.has(map[string]int{"web": 2, "new": 1}) })
}

// sendReports sends what the servers' agents and the load balancer say, once.
func sendReports(agents []*fleetNode, lb *fleetNode, services []engine.ServiceView) {
	for i, agent := range agents {
		load := &ballastv1.LoadReport{}
		for _, s := range services {
			load.Services = append(load.Services, &ballastv1.ServiceLoad{Service: s.Service.Name, Connections: uint32(10 + 10*i), MeanQueue: float32(10 + 10*i)})
		}
		agent.joined.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Load{Load: load}})
	}
	health := &ballastv1.HealthReport{}
	for _, s := range services {
		for _, server := range s.Service.Servers {
			health.Servers = append(health.Servers, &ballastv1.ServerHealth{Service: s.Service.Name, Id: uint32(server.ID), Healthy: true})
		}
	}
	lb.joined.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Health{Health: health}})
}

// Promise: When one of several controllers is killed, frozen or cut off, the services that it led have no new
// weights and health decisions for less than 3 s.
// Also held by TestWhoTakesOverKnowsEverythingAlready and TestLosingControllersBreaksNothing.
func TestControllersDivideTheServicesAndTakeOverFromOneThatIsGone(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) store.Store{
		"memory": func(t *testing.T) store.Store { return storetest.Open(t) },
		"etcd": func(t *testing.T) store.Store {
			s, err := etcd.Embed(t.Context(), etcd.EmbedOptions{DataDir: t.TempDir(), Log: fleettest.Log(t)})
			fleettest.Require(t, err)
			t.Cleanup(func() { fleettest.Require(t, s.Close()) })
			return s
		},
	} {
		t.Run(name, func(t *testing.T) { testTakeOver(t, open(t)) })
	}
}

func testTakeOver(t *testing.T, s store.Store) {
	ca := fleettest.NewAuthority(t)
	one, two := startController(t, ca, "c1", "127.0.0.1:0", s, nil), startController(t, ca, "c2", "127.0.0.1:0", s, nil)
	lb := joinAll(t, ca.Issue(pki.LB, "lb1"), one, two)
	agents := []*fleetNode{joinAll(t, ca.Issue(pki.Agent, "s1"), one, two), joinAll(t, ca.Issue(pki.Agent, "s2"), one, two)}
	var services []engine.ServiceView
	all := map[string]int{}
	for i := range 16 {
		v := fleettest.LoadedService(fmt.Sprint("service", i), model.DispatchAWFD, 1, 2)
		v.Service.Load.Interval = model.Duration(100 * time.Millisecond)
		v.Service.Health.Check = model.CheckTCP
		services, all[v.Service.Name] = append(services, v), 2
	}
	operator := ca.Issue(pki.Ctl, "me")
	apply(t, one.client(operator), services...)
	fleettest.Await(t, "the load balancer knows all", func() bool { return lb.has(all) })

	// weighed tells whether all services have weights by the load, of a term after the one given, and are checked.
	weighed := func(after uint64) bool {
		sendReports(agents, lb, services)
		return lb.locked(func() bool {
			checked := map[string]int{}
			for _, names := range lb.checks {
				for _, name := range names {
					checked[name]++
				}
			}
			for name := range all {
				w := lb.weights[name]
				if w == nil || w.Term <= after || fmt.Sprint(w.Values) != "map[1:4 2:2]" || checked[name] != 1 {
					return false
				}
			}
			return true
		})
	}
	leads := func(c *running) (counts []int) {
		answer, err := c.client(operator).ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		for _, n := range answer.Nodes {
			if n.Role == "controller" && n.Ready != "lost" {
				counts = append(counts, len(n.Services))
			}
		}
		return counts
	}
	fleettest.Await(t, "both lead services", func() bool {
		counts := leads(two)
		return len(counts) == 2 && counts[0] >= 2 && counts[1] >= 2 && counts[0]+counts[1] == 16
	})
	fleettest.Await(t, "all services have weights and are checked", func() bool { return weighed(0) })

	last := uint64(0)
	lb.locked(func() bool {
		for _, w := range lb.weights {
			last = max(last, w.Term)
		}
		return true
	})
	began := time.Now()
	one.stop()
	fleettest.Await(t, "the other has taken over everything", func() bool { return weighed(last) })
	t.Logf("it took %v", time.Since(began)) // how long it may take: TestTakingOverIsDoneInASecondAfterAControllerIsOffTheList
	if counts := leads(two); len(counts) != 1 || counts[0] != 16 {
		t.Errorf("services are divided as %v", counts)
	}
	apply(t, two.client(operator), services[:3]...)
	fleettest.Await(t, "changes go on", func() bool { return lb.has(map[string]int{"service0": 2, "service1": 2, "service2": 2}) })
}

func TestServersThatFailChecksGetNoNewConnectionsAndAreBackWhenTheyAnswer(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), storetest.Open(t)
	c := startController(t, ca, "c1", freeAddress(t), s, nil)
	operator := ca.Issue(pki.Ctl, "me")
	web := fleettest.Service("web", 1, 2)
	web.Service.Health.Check = model.CheckTCP
	apply(t, c.client(operator), web)
	var lbs []*fleetNode
	for i := range 3 {
		lbs = append(lbs, joinAll(t, ca.Issue(pki.LB, fmt.Sprint("lb", i)), c))
	}
	fleettest.Await(t, "all three check", func() bool {
		return !slices.ContainsFunc(lbs, func(n *fleetNode) bool { return !n.locked(func() bool { return len(n.checks[c.address]) == 1 }) })
	})
	down := func(healthy bool, want ...uint32) {
		t.Helper()
		fleettest.Await(t, fmt.Sprint("down is ", want), func() bool {
			agreed := true
			for _, lb := range lbs {
				for id := range uint32(2) {
					report := &ballastv1.HealthReport{Servers: []*ballastv1.ServerHealth{{Service: "web", Id: id + 1, Healthy: healthy || id == 0, Detail: "refused"}}}
					lb.joined.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Health{Health: report}})
				}
				agreed = agreed && lb.locked(func() bool { return lb.states["web"] != nil && slices.Equal(lb.states["web"].Down, want) })
			}
			return agreed
		})
	}
	down(false, 2)
	answer, err := c.client(operator).ListServers(t.Context(), &ballastv1.ListServersRequest{Service: "web"})
	fleettest.Require(t, err)
	if s := answer.Servers[1]; s.Health != "unhealthy" || !strings.Contains(s.HealthDetail, "refused") || s.Weight != 0 {
		t.Errorf("server 2: %v", s)
	}
	c.stop() // what was found out survives its life
	c = startController(t, ca, "c1", c.address, s, nil)
	late := joinAll(t, ca.Issue(pki.LB, "late"), c)
	fleettest.Await(t, "a new load balancer knows", func() bool {
		return late.locked(func() bool { return late.states["web"] != nil && slices.Equal(late.states["web"].Down, []uint32{2}) })
	})
	down(true)
}

// Promise: A drain with a deadline keeps connections until then, and resets them after it.
// Also held by TestDrainedServersKeepTheirConnectionsUntilTheyEndOrTheDeadline.
func TestADrainedServerIsOffAfterItsDeadline(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), nil)
	client := c.client(ca.Issue(pki.Ctl, "me"))
	apply(t, client, fleettest.Service("web", 1, 2))
	lb := joinAll(t, ca.Issue(pki.LB, "lb1"), c)
	drain := func(deadline time.Duration) {
		_, err := client.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "s2", Deadline: durationpb.New(deadline)})
		fleettest.Require(t, err)
	}
	state := func(want string) func() bool {
		return func() bool {
			return lb.locked(func() bool { return lb.states["web"] != nil && lb.states["web"].Service.Servers[1].State == want })
		}
	}
	drain(time.Hour) // long enough to be seen
	fleettest.Await(t, "it drains", state("draining"))
	drain(time.Millisecond)
	fleettest.Await(t, "it is off", state("off"))
}

// Promise: Nodes cannot change the fleet: the fleet API is for the roles `ctl` and `controller`.
func TestOnlyOperatorsUseTheFleetAPI(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), nil)
	apply(t, c.client(ca.Issue(pki.Controller, "c2")), fleettest.Service("web", 1))
	for _, role := range []pki.Role{pki.LB, pki.Agent} {
		client := c.client(ca.Issue(role, "node"))
		_, err := client.RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: "web"})
		_, reading := client.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
		for _, err := range []error{err, reading} {
			if connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "role "+string(role)) {
				t.Errorf("%s: %v", role, err)
			}
		}
	}
	source := c.client(ca.Issue(pki.Source, "kube"))
	if _, err := source.GetFleet(t.Context(), &ballastv1.GetFleetRequest{}); err != nil {
		t.Errorf("a source does not read the fleet: %v", err)
	}
	_, removing := source.RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: "web", Force: true})
	_, owning := source.ApplyServices(t.Context(), &ballastv1.ApplyServicesRequest{Owner: "other"})
	for _, err := range []error{removing, owning} {
		if connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "role ctl") {
			t.Errorf("a source: %v", err)
		}
	}
	stranger := fleettest.NewAuthority(t).Issue(pki.Ctl, "me")
	insecure := &tls.Config{InsecureSkipVerify: true, GetClientCertificate: stranger.Client().GetClientCertificate}
	client := ballastv1connect.NewFleetClient(&http.Client{Transport: &http.Transport{TLSClientConfig: insecure}}, "https://"+c.address)
	if _, err := client.GetFleet(t.Context(), &ballastv1.GetFleetRequest{}); err == nil {
		t.Error("a certificate of another authority is believed")
	}
}

func TestRootIsServedOnASocket(t *testing.T) {
	ca, dir := fleettest.NewAuthority(t), t.TempDir()
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), func(o *Options) { o.RunDir = dir; o.Metrics = "127.0.0.1:0" })
	client := api.NewClient(api.SocketPath(dir, "c1"))
	answer := apply(t, client.Fleet(), fleettest.Service("web", 1), fleettest.Service("mail", 2))
	if len(answer.Changes) == 0 || answer.Revision == 0 {
		t.Errorf("applied: %v", answer)
	}
	fleettest.Join(t, c.address, ca.Issue(pki.LB, "lb1"))
	fleettest.Await(t, "the status tells all", func() bool {
		var s report.Status
		fleettest.Require(t, client.Get(t.Context(), api.PathStatus, &s))
		return s.Role == "controller" && s.Ready && s.Services == 2 && s.Leads == 2 && s.Nodes == 1 && s.Term > 0 && slices.Equal(s.Controllers, []string{"c1"})
	})
	stream, err := client.Stream(t.Context(), api.PathMetrics)
	fleettest.Require(t, err)
	defer stream.Close()
	text, err := io.ReadAll(stream)
	fleettest.Require(t, err)
	metricstest.Check(t, string(text))
	for _, line := range []string{`ballast_control_peers{role="lb"} 1`, `ballast_control_peers_not_ready{role="lb"} 1`, `ballast_control_peers_lost{role="agent"} 0`,
		`ballast_control_behind_seconds `, `ballast_controller_servers{health="unchecked"} 2`, "ballast_controller_servers_without_agent 2", "ballast_ready 1\n", "ballast_key_epoch ",
		`ballast_certificate_expiry_timestamp_seconds{certificate="own"} `, "ballast_controller_services_led 2", `ballast_control_messages_total{direction="sent"}`, "\ngo_gc_heap_live_bytes "} {
		if !strings.Contains(string(text), line) {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
	if info, err := os.Stat(api.SocketPath(dir, "c1")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
}

func TestAControllerWithoutWhatItNeedsSaysWhatToDo(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	ca.Issue(pki.LB, "lb1")
	ca.Issue(pki.Controller, "c1")
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no certificate": {func(o *Options) { o.Name = "c2" }, "ballast ctl pki"},
		"other role":     {func(o *Options) { o.Name = "lb1" }, "role controller"},
		"no store":       {func(*Options) {}, "--data-dir"},
		"two stores":     {func(o *Options) { o.DataDir, o.Etcd = "x", []string{"y"} }, "not both"},
	} {
		o := Options{Name: "c1", TLSDir: ca.Dir, Listen: "127.0.0.1:0", Log: fleettest.Log(t)}
		c.change(&o)
		if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Require(t, err)
	defer taken.Close()
	if err := Run(t.Context(), Options{Name: "c1", TLSDir: ca.Dir, Listen: taken.Addr().String(), Log: fleettest.Log(t)}); err == nil || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("address in use: %v", err)
	}
}

// Whoever tells it to stop may say why, as the program does on a signal: it has not failed.
func TestAControllerThatIsToldToStopHasNotFailed(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	ca.Issue(pki.Controller, "c1")
	ctx, stop := context.WithCancelCause(t.Context())
	o := Options{Name: "c1", TLSDir: ca.Dir, Listen: "127.0.0.1:0", Store: storetest.New(), Timing: fleet.DefaultTiming, Log: fleettest.Log(t),
		Ready: func(string) { stop(errors.New("interrupted by SIGTERM")) }}
	fleettest.Require(t, Run(ctx, o))
}
