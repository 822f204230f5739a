package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// decisions keeps what an engine says.
type decisions struct {
	mutex sync.Mutex
	said  said
}

type said struct {
	weights []*follow.Update
	at      []time.Time // of weights
	down    []string
	off     []string
	checks  map[string][]string
	counts  []countsSaid
	loads   []*follow.Loads
}

type countsSaid struct {
	service string
	counts  *follow.Counts
	shares  map[string]float64
}

// take returns what was said since the last take, once nothing happens any more.
func (d *decisions) take() said {
	synctest.Wait()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	taken := d.said
	d.said = said{checks: taken.checks}
	return taken
}

func (d *decisions) options() engine.Options {
	keep := func(f func(*said)) {
		d.mutex.Lock()
		defer d.mutex.Unlock()
		f(&d.said)
	}
	return engine.Options{
		Weigh: func(_ string, w *follow.Update) {
			keep(func(d *said) { d.weights, d.at = append(d.weights, w), append(d.at, time.Now()) })
		},
		Count: func(s string, counts *follow.Counts, shares map[string]float64) {
			keep(func(d *said) { d.counts = append(d.counts, countsSaid{s, counts, shares}) })
		},
		Loads: func(_ string, loads *follow.Loads, _ map[string]float64) {
			keep(func(d *said) { d.loads = append(d.loads, loads) })
		},
		Down: func(s string, found fleet.Unhealthy) {
			keep(func(d *said) { d.down = append(d.down, fmt.Sprint(s, found.Down, found.Cut)) })
		},
		Off:    func(s string, id uint16) { keep(func(d *said) { d.off = append(d.off, fmt.Sprint(s, id)) }) },
		Checks: func(checks map[string][]string) { keep(func(d *said) { d.checks = checks }) },
	}
}

// startEngine runs an engine that leads everything in the bubble of the test.
func startEngine(t *testing.T, d *decisions, v *engine.View) *engine.Engine {
	e := engine.New(d.options())
	e.SetState(v)
	e.Lead(1, func(string) bool { return true })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return e
}

func agent(id int) pki.Identity { return pki.Identity{Role: pki.Agent, Name: fmt.Sprint("s", id)} }

func queueOf(service string, mean float64) *engine.Load {
	return &engine.Load{Queues: map[string]engine.Queue{service: {Connections: uint32(mean), Mean: mean}}}
}

func TestWeightsFollowTheReportsOfAgentsAndOnlyChangesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		e := startEngine(t, &d, fleettest.View(1, fleettest.LoadedService("web", model.DispatchAWFD, 1, 2, 3)))
		var known follow.Weights
		for round := range 40 { // 10 s
			for id, mean := range []float64{10, 20, 40} {
				if round >= 20 && id == 2 {
					mean = 10
				}
				e.Load(agent(id+1), queueOf("web", mean))
			}
			time.Sleep(250 * time.Millisecond)
		}
		updates, complete := d.take().weights, 0
		for i, w := range updates {
			known.Merge(w)
			if w.Term != 1 || w.Version != uint64(i+1) {
				t.Errorf("update %d is of term %d, version %d", i, w.Term, w.Version)
			}
			if w.Complete {
				complete++
			} else if len(w.Weights) == 0 || len(w.Weights) == 3 {
				t.Errorf("an update of what changed tells %v", w.Weights)
			}
		}
		if !updates[0].Complete || complete < 5 || complete > 6 || len(updates) > complete+3 {
			t.Errorf("%d updates, %d complete", len(updates), complete)
		}
		if fmt.Sprint(known.Values) != "map[1:4 2:2 3:4]" {
			t.Errorf("weights %v", known.Values)
		}
	})
}

func TestServicesAreNotWeighedInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		var services []engine.ServiceView
		for i := range 200 {
			services = append(services, fleettest.LoadedService(fmt.Sprint("service", i), model.DispatchAWFD, 1))
			services[i].Service.Load.Interval = model.Duration(100 * time.Millisecond)
		}
		startEngine(t, &d, fleettest.View(1, services...))
		time.Sleep(10 * time.Second)
		at := d.take().at
		tenths := map[int64]int{} // of the interval
		for _, at := range at {
			tenths[at.UnixMilli()/10%10]++
		}
		for tenth := range int64(10) {
			if share := float64(tenths[tenth]) / float64(len(at)); share < 0.02 || share > 0.3 {
				t.Errorf("of all updates %.0f %% are in tenth %d of the interval", 100*share, tenth)
			}
		}
	})
}

func TestAnAgentSpeaksOnlyForServersOfItsCertificate(t *testing.T) {
	e := engine.New(engine.Options{})
	e.SetState(fleettest.View(1, fleettest.LoadedService("mail", model.DispatchAWFD, 1, 2), fleettest.LoadedService("web", model.DispatchAWFD, 1, 2)))
	e.Load(pki.Identity{Name: "host", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")}},
		&engine.Load{HasCPU: true, CPUPermille: 500, CPUs: 2, Queues: map[string]engine.Queue{"web": {Connections: 7, Mean: 9}, "other": {Connections: 7}}})
	for _, s := range e.Servers("") {
		if s.Health != health.Unchecked {
			t.Errorf("%s %s is %s", s.Service, s.Server.Name, s.Health)
		}
		speaks := s.Service == "web" && s.Server.ID == 2
		if s.Exact != speaks || (s.Connections != nil) != speaks || speaks && *s.Connections != 7 {
			t.Errorf("%s %s: %+v", s.Service, s.Server.Name, s.Status)
		}
	}
}

// Promise: A removed server shows connections of its own host alone, whatever server has its name by now.
func TestAServerThatHasTheNameOfARemovedOneSpeaksForItselfAlone(t *testing.T) {
	at := func(id uint16, address string) model.Server {
		return model.Server{Name: "s1", ID: id, Address: netip.MustParseAddr(address), Weight: 1}
	}
	counted := func(agents ...pki.Identity) string {
		e := engine.New(engine.Options{})
		view := fleettest.View(1, fleettest.LoadedService("web", model.DispatchAWFD, 1))
		web := &view.Services[0]
		web.Service.Servers = []model.Server{at(3, "10.0.0.3")}
		web.Removed = []model.Server{at(1, "10.0.0.1"), at(2, "10.0.0.2")} // the latest last
		e.SetState(view)
		for i, agent := range agents {
			e.Load(agent, &engine.Load{Queues: map[string]engine.Queue{"web": {Connections: uint32(i + 5)}}})
		}
		var found []string
		for _, s := range e.Servers("web") {
			if s.Connections != nil {
				found = append(found, fmt.Sprintf("%d: %d", s.Server.ID, *s.Connections))
			}
		}
		return strings.Join(found, ", ")
	}
	who := func(name string, addresses ...string) pki.Identity {
		identity := pki.Identity{Name: name}
		for _, a := range addresses {
			identity.Addresses = append(identity.Addresses, netip.MustParseAddr(a))
		}
		return identity
	}
	for want, agents := range map[string][]pki.Identity{
		"3: 5":       {who("s1", "10.0.0.3")},
		"1: 5":       {who("s1", "10.0.0.1")}, // the host before, by the same name: not of the server that has it now
		"3: 6, 1: 5": {who("s1", "10.0.0.1"), who("s1", "10.0.0.3")},
		"3: 5, 2: 5": {who("host", "10.0.0.3", "10.0.0.2")},
	} {
		if have := counted(agents...); have != want {
			t.Errorf("%v: %s, want %s", agents, have, want)
		}
	}
	if have := counted(who("s1")); have != "3: 5" {
		t.Errorf("by its name alone: %s", have)
	}
	if have := counted(who("s1", "192.0.2.1")); have != "3: 5" {
		t.Errorf("with the address of no server: %s", have)
	}
}

func sees(id uint16, healthy bool) []engine.ServerHealth {
	return []engine.ServerHealth{{Service: "web", ID: id, View: health.View{Healthy: healthy, Detail: "refused"}}}
}

func TestUnhealthyServersAreToldUntilTheViewAgrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		web := fleettest.Service("web", 1, 2)
		web.Service.Health = model.Health{Check: model.CheckTCP, Interval: model.Duration(time.Second), Rise: 1, Fall: 1, Deadline: model.Duration(10 * time.Second)}
		e := startEngine(t, &d, fleettest.View(1, web))
		e.SetLoadBalancers([]string{"lb1", "lb2", "lb3"})
		if checks := d.take().checks; len(checks) != 3 || !slices.Equal(checks["lb2"], []string{"web"}) {
			t.Fatalf("checks: %v", checks)
		}
		report := func(healthy ...bool) {
			for i, ok := range healthy {
				e.Health(fmt.Sprint("lb", i+1), sees(2, ok))
				e.Health(fmt.Sprint("lb", i+1), sees(1, true))
			}
			synctest.Wait()
		}
		report(true, false, true)
		if down := d.take().down; len(down) != 0 {
			t.Errorf("one of three took it down: %v", down)
		}
		report(false, false, true)
		time.Sleep(3 * engine.RepeatPeriod)
		if down := d.take().down; len(down) < 3 || down[0] != "web[2] []" || down[1] != down[0] {
			t.Errorf("told %v", down)
		}
		web.Down = []uint16{2}
		e.SetState(fleettest.View(2, web))
		for range 4 { // 12 s since it is down
			report(false, false, false)
			time.Sleep(3 * time.Second)
		}
		if down := d.take().down; len(down) == 0 || down[0] != "web[2] [2]" {
			t.Errorf("told %v", down)
		}
		web.Cut = []uint16{2}
		e.SetState(fleettest.View(3, web))
		report(true, true, true)
		if down := d.take().down; len(down) != 1 || down[0] != "web[] []" {
			t.Errorf("told %v", down)
		}
	})
}

func TestUnhealthyServersHaveNoPartInTheWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		web := fleettest.LoadedService("web", model.DispatchAWFD, 1, 2, 3)
		web.Service.Health.Check = model.CheckTCP
		e := startEngine(t, &d, fleettest.View(1, web))
		e.SetLoadBalancers([]string{"lb1"})
		synctest.Wait()
		for range 20 {
			e.Health("lb1", sees(3, false))
			for id, mean := range []float64{10, 20, 0} { // a dead server has no load
				e.Load(agent(id+1), queueOf("web", mean))
			}
			time.Sleep(250 * time.Millisecond)
		}
		updates := d.take().weights
		last := updates[len(updates)-1]
		if !last.Complete || !slices.Equal(last.Weights, []model.Share{{ID: 1, Weight: 4}, {ID: 2, Weight: 2}}) {
			t.Errorf("the last update is %v", last)
		}
		for _, s := range e.Servers("web") {
			if s.Server.ID == 3 && (s.Health != health.Unhealthy || s.Weight != 0) {
				t.Errorf("server 3: %v", s)
			}
		}
	})
}

func TestADrainEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		web := fleettest.Service("web", 1, 2)
		web.Service.Servers[1].State, web.Service.Servers[1].Deadline = model.StateDraining, time.Now().Add(time.Minute)
		e := startEngine(t, &d, fleettest.View(1, web))
		time.Sleep(time.Minute - 1)
		if off := d.take().off; len(off) != 0 {
			t.Errorf("too early: %v", off)
		}
		time.Sleep(2 * engine.RepeatPeriod)
		if off := d.take().off; len(off) == 0 || off[0] != "web2" {
			t.Errorf("asked for %v", off)
		}
		web.Service = web.Service.Clone()
		web.Service.Servers[1].State = model.StateOff
		e.SetState(fleettest.View(2, web))
		time.Sleep(time.Minute)
		if off := d.take().off; len(off) != 0 {
			t.Errorf("asked again for %v", off)
		}
	})
}

func TestWhoTakesOverKnowsEverythingAlready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var one, two decisions
		web := fleettest.LoadedService("web", model.DispatchAWFD, 1, 2)
		web.Service.Health.Check = model.CheckTCP
		first, second := startEngine(t, &one, fleettest.View(1, web)), startEngine(t, &two, fleettest.View(1, web))
		second.Lead(0, func(string) bool { return false })
		for _, e := range []*engine.Engine{first, second} {
			e.SetLoadBalancers([]string{"lb1"})
		}
		synctest.Wait()
		for range 20 {
			for _, e := range []*engine.Engine{first, second} {
				e.Load(agent(1), queueOf("web", 10))
				e.Load(agent(2), queueOf("web", 20))
				e.Health("lb1", sees(2, true))
			}
			time.Sleep(250 * time.Millisecond)
		}
		if said := two.take(); len(said.weights) != 0 || len(said.checks) != 0 {
			t.Fatalf("who does not lead said %v, %v", said.weights, said.checks)
		}
		first.Lead(0, func(string) bool { return false })
		second.Lead(7, func(string) bool { return true })
		took, former := time.Now(), one.take().weights
		time.Sleep(time.Second)
		if went := one.take(); len(went.weights) != 0 || len(went.checks["lb1"]) != 1 {
			t.Errorf("who gave up went on, or ended checks: %v, %v", went.weights, went.checks)
		}
		said := two.take()
		if len(said.weights) == 0 || said.weights[0].Term != 7 || !said.weights[0].Complete || said.at[0].Sub(took) > time.Second {
			t.Fatalf("who took over said %v", said.weights)
		}
		if got, last := said.weights[0], former[len(former)-1]; !slices.Equal(got.Weights, []model.Share{{ID: 1, Weight: 4}, {ID: 2, Weight: 2}}) || last.Term >= got.Term {
			t.Errorf("who took over said %v after %v", got, last)
		}
		if len(said.checks["lb1"]) != 1 {
			t.Errorf("checks: %v", said.checks)
		}
	})
}

// application answers polls, and counts them by host.
type application struct {
	mutex  sync.Mutex
	polled map[string]int
	silent bool
}

func (a *application) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.polled[r.URL.Host]++
	if a.silent {
		return nil, errors.New("silent")
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("outstanding 5\ncapacity 64"))}, nil
}

func TestOnlyServersOfServicesThatAreLedArePolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		app := &application{polled: map[string]int{}}
		o := d.options()
		o.Transport, o.Log = app, fleettest.Log(t)
		web, other := fleettest.LoadedService("web", model.DispatchAWFD, 1), fleettest.LoadedService("other", model.DispatchAWFD, 2)
		web.Service.Load.Source, web.Service.Load.Endpoint = model.LoadEndpoint, "http://:8080/load"
		other.Service.Load = web.Service.Load
		e := engine.New(o)
		e.SetState(fleettest.View(1, other, web))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); e.Run(ctx) }()
		expect := func(hosts ...string) { // 10 s at 4 Hz
			t.Helper()
			time.Sleep(time.Second)
			app.mutex.Lock()
			clear(app.polled)
			app.mutex.Unlock()
			time.Sleep(10 * time.Second)
			synctest.Wait()
			app.mutex.Lock()
			defer app.mutex.Unlock()
			for _, host := range hosts {
				if n := app.polled[host]; n < 39 || n > 41 {
					t.Errorf("%s was polled %d times", host, n)
				}
			}
			if len(app.polled) != len(hosts) {
				t.Errorf("polled %v, want %v", app.polled, hosts)
			}
		}
		expect()
		e.Lead(1, func(name string) bool { return name == "web" })
		expect("10.0.0.1:8080")
		if s := e.Servers("web")[0]; s.Source != "endpoint" || s.Load != 5 {
			t.Errorf("known of web: %v", s)
		}
		next := fleettest.LoadedService("web", model.DispatchAWFD, 1, 3, 4)
		next.Service.Load = web.Service.Load
		next.Service.Servers[2].State = model.StateOff
		e.SetState(fleettest.View(2, next)) // and other is gone
		expect("10.0.0.1:8080", "10.0.0.3:8080")
		app.mutex.Lock()
		app.silent = true
		app.mutex.Unlock()
		expect("10.0.0.1:8080", "10.0.0.3:8080")
		if s := e.Servers("web")[0]; s.Source != "" {
			t.Errorf("known of web, which says nothing: %v", s)
		}
		e.SetState(fleettest.View(3))
		expect()
		cancel()
		<-ended
	})
}

func TestReportsAreTakenWhileEverythingChanges(t *testing.T) {
	var d decisions
	e := startEngine(t, &d, fleettest.View(1))
	var running sync.WaitGroup
	for worker := range 4 {
		running.Go(func() {
			for i := range 300 {
				web := fleettest.LoadedService("web", model.DispatchAWFD, fleettest.ManyIDs(1+i%5)...)
				web.Service.Health.Check = model.CheckTCP
				web.Service.Load.Interval = model.MinLoadInterval
				switch (i + worker) % 6 {
				case 0:
					e.SetState(fleettest.View(uint64(i+1), web, fleettest.Service("other", 1)))
				case 1:
					e.SetState(fleettest.View(uint64(i+1), fleettest.Service("other", 1)))
				case 2:
					e.SetLoadBalancers([]string{"lb1", fmt.Sprint("lb", i)})
				case 3:
					e.Lead(uint64(i), func(name string) bool { return name == "web" })
				}
				e.Load(agent(1), queueOf("web", 3))
				e.Health("lb1", sees(1, i%2 == 0))
				e.Traffic("lb1", []engine.ServerTraffic{
					{Service: "web", ID: 1, Seen: balance.Seen{Packets: uint64(i)}}, {Service: "web", ID: 1 << 15}, {Service: "none"}, {Service: "other", ID: 1}})
				e.Servers("")
				e.Activity("web", 1)
			}
		})
	}
	running.Wait()
}

func TestUpdatesThatAreLostAreMadeGoodByTheNextCompleteOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		e := startEngine(t, &d, fleettest.View(1, fleettest.LoadedService("web", model.DispatchAWFD, 1, 2, 3, 4)))
		for round := range 80 {
			for id := range 4 {
				e.Load(agent(id+1), queueOf("web", float64(5+(round*(id+3))%17)))
			}
			time.Sleep(250 * time.Millisecond)
		}
		var all, lossy follow.Weights
		for i, w := range d.take().weights {
			all.Merge(w)
			if i%3 != 1 || w.Complete {
				lossy.Merge(w)
			}
			if w.Complete && fmt.Sprint(all.Values) != fmt.Sprint(lossy.Values) {
				t.Errorf("after a complete update: %v, not %v", lossy.Values, all.Values)
			}
		}
	})
}
