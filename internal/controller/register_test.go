// Concurrent clients of several controllers, whose store is partitioned and stalls, and who are frozen and killed.
package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

const (
	raceControllers, raceClients = 3, 6
	raceServers                  = 3 // whose weights and states are changed
	raceServices, raceVIPs       = 3, 2
	raceRound                    = 6 * time.Second
	// controllerVariable has the controller that a process is to be, as JSON: this program is also the controllers of its tests.
	controllerVariable = "BALLAST_TEST_CONTROLLER"
)

func TestMain(m *testing.M) {
	if text, is := os.LookupEnv(controllerVariable); is {
		var o Options
		err := json.Unmarshal([]byte(text), &o)
		if err == nil {
			o.Log, o.Timing = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), fleet.DefaultTiming
			err = Run(context.Background(), o)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// contender is a controller in a process of its own, with a way to the store that can be held.
type contender struct {
	Options
	way     *link
	process *exec.Cmd
}

func (c *contender) start(t *testing.T) {
	text, err := json.Marshal(map[string]any{"Name": c.Name, "Listen": c.Listen, "TLSDir": c.TLSDir, "Etcd": c.Etcd, "Version": c.Version})
	fleettest.Require(t, err)
	c.process = exec.Command("/proc/self/exe")
	c.process.Env = append(os.Environ(), controllerVariable+"="+string(text))
	c.process.Stderr = t.Output()
	c.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	fleettest.Require(t, c.process.Start())
}

func (c *contender) kill() {
	c.process.Process.Kill()
	c.process.Wait()
}

// race is the whole arrangement.
type race struct {
	t           *testing.T
	random      *rand.Rand
	controllers []*contender
	client      func(controller int) ballastv1connect.FleetClient
	began       time.Time

	mutex   sync.Mutex
	servers [raceServers][]porcupine.Operation
	vips    []porcupine.Operation
	told    map[string]int // how often what was told
}

func newRace(t *testing.T, seed uint64) *race {
	address := freeAddress(t)
	embedded, err := etcd.Embed(t.Context(), etcd.EmbedOptions{DataDir: t.TempDir(), ClientURL: "http://" + address, Log: slog.New(slog.DiscardHandler)})
	fleettest.Require(t, err)
	t.Cleanup(func() { fleettest.Require(t, embedded.Close()) })
	ca := fleettest.NewAuthority(t)
	r := &race{t: t, random: rand.New(rand.NewPCG(seed, 0)), began: time.Now(), told: map[string]int{}}
	for i := range raceControllers {
		way, at := newLink(t, address)
		name := fmt.Sprint("c", i+1)
		ca.Issue(pki.Controller, name)
		c := &contender{Options: Options{Name: name, Listen: freeAddress(t), TLSDir: ca.Dir, Etcd: []string{"http://" + at}, Version: "1.2.3"}, way: way}
		c.start(t)
		t.Cleanup(func() { c.process.Process.Signal(syscall.SIGCONT); c.kill() })
		r.controllers = append(r.controllers, c)
	}
	operator := ca.Issue(pki.Ctl, "me")
	r.client = func(i int) ballastv1connect.FleetClient {
		return api.NewFleetClient([]string{r.controllers[i].Listen}, operator.Client())
	}
	r.watch(embedded)
	return r
}

// watch fails the test when what is in the store does not make sense as a whole.
func (r *race) watch(s store.Store) {
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		have := documents.New()
		for batch := range s.Watch(ctx, 0) {
			for _, document := range batch.Documents {
				if err := have.Take(document, batch.Revision); err != nil {
					r.t.Error(err)
				}
			}
			if fleet := have.Fleet(); fleet.Validate() != nil {
				r.t.Errorf("at revision %d the fleet contradicts itself: %v", batch.Revision, fleet.Validate())
			}
		}
	})
	r.t.Cleanup(func() { cancel(); watching.Wait() })
}

func raceVIP(i int) string { return fmt.Sprintf("198.51.100.%d", 100+i) }

// raceFleet has the servers; the services that contend for VIPs come and go.
func raceFleet() *ballastv1.ApplyRequest {
	web := &ballastv1.Service{Name: "web", Vip: "198.51.100.1", Ports: []uint32{80}}
	for i := range raceServers + 1 { // the last one is for the fence
		web.Servers = append(web.Servers, &ballastv1.Server{Name: fmt.Sprint("s", i), Address: fmt.Sprintf("10.0.0.%d", i+1)})
	}
	return &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web, {Name: "pool", Vip: "198.51.100.2", Ports: []uint32{80}}}}
}

func (r *race) now() int64 { return int64(time.Since(r.began)) }

// read tells the states as one controller knows them; confirmed: it is certain that they are the newest.
func (r *race) read(ctx context.Context, fleet ballastv1connect.FleetClient) (servers [raceServers]serverState, vips vipState, confirmed bool) {
	answer, err := fleet.GetFleet(ctx, &ballastv1.GetFleetRequest{})
	if err != nil || answer.Unconfirmed != "" {
		return servers, vips, false
	}
	vip := func(address string) int { return int(netip.MustParseAddr(address).As4()[3]) - 100 }
	for _, s := range answer.Services {
		switch s.Name {
		case "web":
			for i := range servers {
				servers[i] = serverState{int(*s.Servers[i].Weight), s.Servers[i].State == "draining"}
			}
		case "pool":
			for _, server := range s.Servers {
				vips.server[vip(server.Address)] = true
			}
		default:
			number, err := strconv.Atoi(s.Name[1:])
			fleettest.Require(r.t, err)
			vips.of[number] = vip(s.Vip)
		}
	}
	return servers, vips, true
}

// ask does one thing and takes note of what was told.
func (r *race) ask(ctx context.Context, id int, fleet ballastv1connect.FleetClient, a action) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	call := r.now()
	if a.kind == "read" {
		servers, vips, confirmed := r.read(ctx, fleet)
		if confirmed {
			r.noteReading(id, call, servers, vips)
		}
		return
	}
	changes, err := r.change(ctx, fleet, a)
	o := outcome{changed: len(changes) > 0}
	if err != nil {
		switch o.code = connect.CodeOf(err); o.code {
		case connect.CodeAborted: // others were faster all the time
			o.code = notNow
		case connect.CodeDeadlineExceeded, connect.CodeCanceled:
			o.code = unknown
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	operation := porcupine.Operation{ClientId: id, Input: a, Output: o, Call: call, Return: r.now()}
	r.told[fmt.Sprint(cmp.Or(o.code.String(), "?"), " ", o.changed)]++
	switch a.kind {
	case "weigh", "drain", "undrain":
		r.servers[a.what] = append(r.servers[a.what], operation)
	default:
		r.vips = append(r.vips, operation)
	}
}

func (r *race) noteReading(id int, call int64, servers [raceServers]serverState, vips vipState) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	operation := porcupine.Operation{ClientId: id, Input: action{kind: "read"}, Call: call, Return: r.now()}
	r.told["readings"]++
	for i := range servers {
		operation.Output = outcome{server: servers[i]}
		r.servers[i] = append(r.servers[i], operation)
	}
	operation.Output = outcome{vips: vips}
	r.vips = append(r.vips, operation)
}

func (r *race) change(ctx context.Context, fleet ballastv1connect.FleetClient, a action) ([]string, error) {
	server, service := fmt.Sprint("s", a.what), &ballastv1.Service{Name: fmt.Sprint("r", a.what), Vip: raceVIP(a.to), Ports: []uint32{80}}
	yes, no := true, false
	var answer *ballastv1.ChangeResponse
	var err error
	switch a.kind {
	case "weigh":
		answer, err = fleet.WeighServer(ctx, &ballastv1.WeighServerRequest{Service: "web", Server: server, Weight: uint32(a.to)})
	case "drain":
		answer, err = fleet.DrainServer(ctx, &ballastv1.DrainServerRequest{Service: "web", Server: server})
	case "undrain":
		answer, err = fleet.UndrainServer(ctx, &ballastv1.ServerRequest{Service: "web", Server: server})
	case "add":
		answer, err = fleet.PutService(ctx, &ballastv1.PutServiceRequest{Service: service, Exists: &no})
	case "move":
		answer, err = fleet.PutService(ctx, &ballastv1.PutServiceRequest{Service: service, Exists: &yes})
	case "remove":
		answer, err = fleet.RemoveService(ctx, &ballastv1.RemoveServiceRequest{Service: service.Name})
	case "point":
		added, err := fleet.AddServer(ctx, &ballastv1.AddServerRequest{Service: "pool", Server: &ballastv1.Server{Name: fmt.Sprint("p", a.to), Address: raceVIP(a.to)}})
		return added.GetChanges(), err
	case "unpoint":
		answer, err = fleet.RemoveServer(ctx, &ballastv1.ServerRequest{Service: "pool", Server: fmt.Sprint("p", a.to), Force: true})
	}
	return answer.GetChanges(), err
}

// anyAction is one of those that get in each other's way.
func anyAction(random *rand.Rand) action {
	kinds := []string{"weigh", "drain", "undrain", "add", "move", "remove", "point", "unpoint", "read"}
	a := action{kind: kinds[random.IntN(len(kinds))], what: random.IntN(raceServices), to: 1 + random.IntN(raceVIPs)}
	if a.kind == "weigh" {
		a.to = 1 + random.IntN(3)
	}
	return a
}

// trouble lasts for a moment, and leaves things as they were.
func (r *race) trouble(ctx context.Context) {
	c := r.controllers[r.random.IntN(len(r.controllers))]
	pause := func(most time.Duration) {
		select {
		case <-time.After(time.Duration(r.random.Int64N(int64(most)))):
		case <-ctx.Done():
		}
	}
	switch r.random.IntN(5) {
	case 0: // all is well
		pause(time.Second)
	case 1: // a controller is cut off from the store
		c.way.hold(true)
		pause(3 * time.Second)
		c.way.hold(false)
	case 2: // the store stalls
		for _, c := range r.controllers {
			c.way.hold(true)
		}
		pause(3 * time.Second)
		for _, c := range r.controllers {
			c.way.hold(false)
		}
	case 3: // a controller is frozen, and goes on with what it knew
		c.process.Process.Signal(syscall.SIGSTOP)
		pause(3 * time.Second)
		c.process.Process.Signal(syscall.SIGCONT)
	case 4: // a controller is killed in the midst of it
		c.kill()
		pause(time.Second)
		c.start(r.t)
	}
}

// round lets all clients loose for a while, and begins with what was read.
func (r *race) round(servers [raceServers]serverState, vips vipState) ([raceServers]serverState, vipState) {
	ctx, cancel := context.WithTimeout(r.t.Context(), raceRound)
	defer cancel()
	var clients sync.WaitGroup
	for id := range raceClients {
		random := rand.New(rand.NewPCG(r.random.Uint64(), 0))
		clients.Go(func() {
			var fleets []ballastv1connect.FleetClient
			for i := range r.controllers {
				fleets = append(fleets, r.client(i))
			}
			for ctx.Err() == nil {
				r.ask(context.WithoutCancel(ctx), id, fleets[random.IntN(len(fleets))], anyAction(random))
			}
		})
	}
	for ctx.Err() == nil {
		r.trouble(ctx)
	}
	clients.Wait()
	servers2, vips2 := r.settle()
	for i := range r.servers {
		check(r.t, fmt.Sprint("server ", i), register(servers[i], serverState.answers, func(o outcome) serverState { return o.server }), r.servers[i])
		r.servers[i] = nil
	}
	check(r.t, "services", register(vips, vipState.answers, func(o outcome) vipState { return o.vips }), r.vips)
	r.vips = nil
	return servers2, vips2
}

// settle makes a change, after which none of before can be carried out any more, and reads what all came to.
func (r *race) settle() (servers [raceServers]serverState, vips vipState) {
	fence := func(fleet ballastv1connect.FleetClient) bool {
		answer, err := fleet.WeighServer(r.t.Context(), &ballastv1.WeighServerRequest{Service: "web", Server: fmt.Sprint("s", raceServers), Weight: 1 + r.random.Uint32N(1000)})
		return err == nil && len(answer.Changes) > 0
	}
	fleettest.Await(r.t, "every controller works", func() bool {
		for i := range r.controllers {
			if !fence(r.client(i)) {
				return false
			}
		}
		return true
	})
	end := r.now()
	for _, list := range append(r.servers[:], r.vips) {
		for i := range list {
			if list[i].Output.(outcome).code == unknown {
				list[i].Return = end
			}
		}
	}
	call := r.now()
	fleettest.Await(r.t, "the fleet is read", func() bool {
		var confirmed bool
		servers, vips, confirmed = r.read(r.t.Context(), r.client(0))
		return confirmed
	})
	r.noteReading(raceClients, call, servers, vips)
	return servers, vips
}

func TestWhatControllersTellIsLinearizableWhateverHappensToThem(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	seed, end := rand.Uint64(), time.Now().Add(40*time.Second)
	if text := os.Getenv("BALLAST_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		fleettest.Require(t, err)
	}
	if os.Getenv("BALLAST_LONG") != "" {
		end = time.Now().Add(time.Hour)
	}
	t.Logf("seed %d: BALLAST_SEED repeats the same troubles", seed)
	r := newRace(t, seed)
	var last error
	fleettest.Await(t, "the fleet is there", func() bool {
		_, last = r.client(0).Apply(t.Context(), raceFleet())
		var refused *connect.Error
		if errors.As(last, &refused) && refused.Code() != notNow && refused.Code() != unknown {
			t.Fatal(last)
		}
		return last == nil
	})
	servers, vips := r.settle()
	r.servers, r.vips = [raceServers][]porcupine.Operation{}, nil
	rounds := 0
	for ; time.Now().Before(end) && !t.Failed(); rounds++ {
		servers, vips = r.round(servers, vips)
	}
	t.Logf("%d rounds; told: %v", rounds, r.told)
	for _, kind := range []string{"code_0 true", "code_0 false", "unknown false", "unavailable false", "invalid_argument false", "not_found false", "already_exists false", "readings"} {
		if r.told[kind] == 0 {
			t.Logf("nobody was told %q: the test shows less than it could", kind)
		}
	}
}
