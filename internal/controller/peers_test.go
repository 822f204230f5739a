package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/controller/bootstrap"
	"github.com/ballast-lb/ballast/internal/controller/members"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// keeper is a controller that keeps the state itself. It ends with an error if it is not told to.
type keeper struct {
	t                     testing.TB
	dir, address, metrics string
	cancel                context.CancelFunc
	ended                 chan error
	ready                 chan struct{}
}

// beginKeeper starts a controller with the state in dir, at an address that its certificate names, and waits for nothing.
func beginKeeper(t testing.TB, ca *fleettest.Authority, name, dir, address string, join ...string) *keeper {
	t.Helper()
	if _, err := os.Stat(filepath.Join(ca.Dir, name+".crt")); err != nil {
		ca.Issue(pki.Controller, name, "127.0.0.1")
	}
	return runKeeper(t, ca, Options{Name: name, Listen: address, DataDir: dir, Join: join})
}

// runKeeper runs a controller by options, of which it fills in what all have in common.
func runKeeper(t testing.TB, ca *fleettest.Authority, o Options) *keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeper{t, o.DataDir, o.Listen, freeAddress(t), cancel, make(chan error, 1), make(chan struct{})}
	o.TLSDir, o.Timing, o.Version, o.Metrics = ca.Dir, fleet.DefaultTiming, "1.2.3", k.metrics
	o.Log, o.Ready = fleettest.Log(t).With("controller", o.Name), func(string) { close(k.ready) }
	go func() { k.ended <- Run(ctx, o); close(k.ended) }()
	t.Cleanup(func() { cancel(); <-k.ended })
	return k
}

func startKeeper(t testing.TB, ca *fleettest.Authority, name, dir, address string, join ...string) *keeper {
	t.Helper()
	k := beginKeeper(t, ca, name, dir, address, join...)
	select {
	case <-k.ready:
	case err := <-k.ended:
		t.Fatal(name, " ended: ", err)
	case <-time.After(fleettest.Deadline):
		t.Fatal(name, " does not serve")
	}
	return k
}

func (k *keeper) stop() {
	k.t.Helper()
	k.cancel()
	fleettest.Require(k.t, <-k.ended)
}

// ends waits until it ends by itself, and returns why.
func (k *keeper) ends() error {
	k.t.Helper()
	select {
	case err := <-k.ended:
		return err
	case <-time.After(fleettest.Deadline):
		k.t.Fatal("it does not end")
		return nil
	}
}

// controllersOf is a client for what controllers say of themselves.
func controllersOf(credentials *pki.Credentials, addresses ...string) ballastv1connect.ControllersClient {
	return api.NewControllersClient(addresses, credentials.Client())
}

// awaitControllers waits until the list of controllers is as wanted: NAME STATE alive|dead.
func awaitControllers(t testing.TB, client ballastv1connect.ControllersClient, wanted ...string) {
	t.Helper()
	fleettest.Await(t, fmt.Sprintf("the controllers are %v", wanted), func() bool {
		answer, err := client.ListControllers(t.Context(), &ballastv1.ListControllersRequest{})
		var found []string
		for _, c := range answer.GetControllers() {
			alive := "dead"
			if c.Alive {
				alive = "alive"
			}
			found = append(found, c.Name+" "+c.State+" "+alive)
		}
		return err == nil && slices.Equal(found, wanted)
	})
}

func removeController(t testing.TB, client ballastv1connect.ControllersClient, name string) {
	t.Helper()
	for _, dryRun := range []bool{true, true, false} {
		_, err := client.RemoveController(t.Context(), &ballastv1.RemoveControllerRequest{Name: name, DryRun: dryRun})
		fleettest.Require(t, err)
	}
}

// changer adds servers to a service one after the other, and knows how many additions were acknowledged.
type changer struct {
	t            *testing.T
	fleet        ballastv1connect.FleetClient
	acknowledged atomic.Int64
	stop         func()
}

func startChanger(t *testing.T, fleet ballastv1connect.FleetClient) *changer {
	c := &changer{t: t, fleet: fleet}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for id := 1; ctx.Err() == nil; {
			<-tick.C
			server := &ballastv1.Server{Name: fmt.Sprint("a", id), Address: fmt.Sprintf("10.1.%d.%d", id/250, id%250+1)}
			_, err := fleet.AddServer(ctx, &ballastv1.AddServerRequest{Service: "web", Server: server})
			if err == nil || c.has(server.Name) { // it was carried out and not answered
				c.acknowledged.Store(int64(id))
				id++
			}
		}
	})
	c.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(c.stop)
	return c
}

func (c *changer) has(name string) bool { return slices.Contains(c.names(), name) }

func (c *changer) names() (names []string) {
	fleet, err := c.fleet.GetFleet(c.t.Context(), &ballastv1.GetFleetRequest{})
	if err != nil || len(fleet.Services) != 1 {
		return nil
	}
	for _, s := range fleet.Services[0].Servers {
		names = append(names, s.Name)
	}
	return names
}

func (c *changer) goesOn(what string) {
	c.t.Helper()
	before := c.acknowledged.Load()
	fleettest.Await(c.t, "changes go on "+what, func() bool { return c.acknowledged.Load() > before+2 })
}

// Promise: A fleet goes from one controller to three and back, with changes meanwhile, and loses no acknowledged
// change.
// Promise: A removed controller that returns exits with status 1 and the remedy.
func TestAFleetGoesFromOneControllerToThreeAndBackAndLosesNoChange(t *testing.T) {
	if os.Getenv("BALLAST_LONG") == "" {
		t.Skip("takes half a minute, as etcd waits until members have been in touch for 5 s: BALLAST_LONG=1, as in make test-long")
	}
	ca := fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	at := []string{freeAddress(t), freeAddress(t), freeAddress(t)}
	c1 := startKeeper(t, ca, "c1", t.TempDir(), at[0])
	lb := joinAll(t, ca.Issue(pki.LB, "lb1"), &running{address: at[0]}, &running{address: at[1]}, &running{address: at[2]})
	list := controllersOf(operator, at...)
	fleet := api.NewFleetClient(at, operator.Client())
	apply(t, fleet, fleettest.Service("web", 1000))
	changes := startChanger(t, fleet)
	changes.goesOn("with one controller")
	c2 := beginKeeper(t, ca, "c2", t.TempDir(), at[1], at[0])
	c3 := beginKeeper(t, ca, "c3", t.TempDir(), at[2], at[1], at[0]) // two at once
	awaitControllers(t, list, "c1 voter alive", "c2 voter alive", "c3 voter alive")
	changes.goesOn("with three")
	c1.stop()
	changes.goesOn("without the first")
	startKeeper(t, ca, "c1", c1.dir, at[0], at[1], at[0]) // with --join: it has joined before
	awaitControllers(t, list, "c1 voter alive", "c2 voter alive", "c3 voter alive")
	changes.goesOn("with the first again")
	for name, leaving := range map[string]*keeper{"c3": c3, "c2": c2} {
		removeController(t, list, name)
		if err := leaving.ends(); !errors.Is(err, etcd.ErrRemoved) {
			t.Errorf("%s was removed and ends with %v", name, err)
		}
		changes.goesOn("without " + name)
	}
	awaitControllers(t, list, "c1 voter alive")
	again := beginKeeper(t, ca, "c3", c3.dir, at[2])
	if err := again.ends(); !errors.Is(err, etcd.ErrRemoved) {
		t.Errorf("c3 comes back with what it had and ends with %v", err)
	}
	// What it had was only begun: then it joins anew.
	fleettest.Require(t, os.WriteFile(filepath.Join(c3.dir, "etcd", "joining"), nil, 0o600))
	startKeeper(t, ca, "c3", c3.dir, at[2], at[0])
	awaitControllers(t, list, "c1 voter alive", "c3 voter alive")
	removeController(t, list, "c3")
	fleettest.Await(t, "nodes are listed without controllers that were removed", func() bool {
		answer, err := fleet.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		return err == nil && len(answer.Nodes) == 2 && answer.Nodes[0].Name == "c1" && answer.Nodes[1].Name == "lb1"
	})
	if _, err := list.RemoveController(t.Context(), &ballastv1.RemoveControllerRequest{Name: "c1"}); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("removing the last one: %v", err)
	}
	changes.stop()
	names := changes.names()
	for id := int64(1); id <= changes.acknowledged.Load(); id++ {
		if name := fmt.Sprint("a", id); !slices.Contains(names, name) {
			t.Errorf("%s was acknowledged and is lost", name)
		}
	}
	fleettest.Await(t, "the load balancer knows all", func() bool { return lb.has(map[string]int{"web": len(changes.names())}) })
}

// Promise: A controller that dies while it joins joins again at its next start, and two that join at once join one
// after the other.
// Also held by TestAFleetGoesFromOneControllerToThreeAndBackAndLosesNoChange.
func TestAJoinThatWasCutOffIsMadeAgain(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	c1 := startKeeper(t, ca, "c1", t.TempDir(), freeAddress(t))
	list, at := controllersOf(operator, c1.address), freeAddress(t)
	addAs(t, ca, "c2", at, c1.address)
	awaitControllers(t, list, " joining dead", "c1 voter alive")
	startKeeper(t, ca, "c2", t.TempDir(), at, c1.address)
	awaitControllers(t, list, "c1 voter alive", "c2 voter alive")
}

// A controller that is removed while it joins has been removed: it ends, and does not join again when it is started again.
func TestAControllerThatIsRemovedWhileItJoinsStaysAway(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	c1 := startKeeper(t, ca, "c1", t.TempDir(), freeAddress(t))
	list, at, dir := controllersOf(operator, c1.address), freeAddress(t), t.TempDir()
	c2 := beginKeeper(t, ca, "c2", dir, at, c1.address)
	fleettest.Await(t, "it is removed", func() bool {
		_, err := list.RemoveController(t.Context(), &ballastv1.RemoveControllerRequest{Name: "c2"})
		return err == nil
	})
	for range 2 {
		if err := c2.ends(); !errors.Is(err, etcd.ErrRemoved) {
			t.Fatalf("it ends with %v", err)
		}
		awaitControllers(t, list, "c1 voter alive")
		c2 = beginKeeper(t, ca, "c2", dir, at, c1.address)
	}
}

// When it is started again, etcd does not find out by itself: it connects to those alone that it has entries about. One line for all
// controllers names in --join the one that reads it, too.
func TestAControllerThatIsRemovedBeforeItWasSentAnythingStaysAway(t *testing.T) {
	for name, itself := range map[string]bool{"it is given the other": false, "it is given itself, then the other": true} {
		t.Run(name, func(t *testing.T) {
			ca := fleettest.NewAuthority(t)
			operator := ca.Issue(pki.Ctl, "me")
			ca.Issue(pki.Controller, "c2", "127.0.0.1")
			c1 := startKeeper(t, ca, "c1", t.TempDir(), freeAddress(t))
			list, own := controllersOf(operator, c1.address), freeAddress(t)
			l, seen := newLink(t, own)
			l.limit(1) // c1 finds c2 there, and then sends it nothing
			join := []string{c1.address}
			if itself {
				join = []string{own, c1.address}
			}
			o := Options{Name: "c2", Listen: own, Public: seen, DataDir: t.TempDir(), Join: join}
			c2 := runKeeper(t, ca, o)
			fleettest.Await(t, "its store starts", func() bool {
				_, err := os.Stat(filepath.Join(c2.dir, "etcd", "member", "wal"))
				return err == nil
			})
			fleettest.Await(t, "it is removed", func() bool {
				_, err := list.RemoveController(t.Context(), &ballastv1.RemoveControllerRequest{Name: seen})
				return err == nil
			})
			for range 2 {
				if err := c2.ends(); !errors.Is(err, etcd.ErrRemoved) {
					t.Fatalf("it ends with %v", err)
				}
				c2 = runKeeper(t, ca, o)
			}
		})
	}
}

// Promise: A controller that waits for the others stops when it is asked to.
func TestAControllerThatWaitsForTheOthersCanBeStopped(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	c1 := startKeeper(t, ca, "c1", t.TempDir(), freeAddress(t))
	list, at := controllersOf(operator, c1.address), freeAddress(t)
	c2 := startKeeper(t, ca, "c2", t.TempDir(), at, c1.address)
	awaitControllers(t, list, "c1 voter alive", "c2 voter alive")
	c2.stop()
	c1.stop()
	waiting := beginKeeper(t, ca, "c2", c2.dir, at)
	fleettest.Await(t, "it says that it has no majority", func() bool {
		_, err := api.NewFleetClient([]string{at}, operator.Client()).ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		return connect.CodeOf(err) == connect.CodeUnavailable && strings.Contains(err.Error(), "wait")
	})
	waiting.cancel()
	waiting.ends()
}

// Else there would be two fleets, and nobody would say so.
//
// Promise: A controller that began alone and is started with `--join` continues with its own data, and its status
// says so.
func TestAControllerWithDataOfItsOwnSaysThatItJoinsNobody(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	dir, at := t.TempDir(), freeAddress(t)
	fleet := api.NewFleetClient([]string{at}, operator.Client())
	says := func() (found bool) {
		fleettest.Await(t, "it lists itself", func() bool {
			answer, err := fleet.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
			if err == nil && len(answer.Nodes) == 1 {
				found = strings.Contains(strings.Join(answer.Nodes[0].Problems, "\n"), "--join has no effect")
			}
			return err == nil && len(answer.Nodes) == 1
		})
		return found
	}
	alone := startKeeper(t, ca, "c2", dir, at)
	if says() {
		t.Error("it was not to join anybody")
	}
	alone.stop()
	startKeeper(t, ca, "c2", dir, at, freeAddress(t))
	if !says() {
		t.Error("it says nothing")
	}
}

// addAs is the request of a controller that answers at an address until it has got the answer.
func addAs(t *testing.T, ca *fleettest.Authority, name, address, other string) {
	t.Helper()
	credentials := ca.Issue(pki.Controller, name, "127.0.0.1")
	ports, err := bootstrap.Listen(bootstrap.Options{Listen: address, Credentials: credentials, Log: fleettest.Log(t)})
	fleettest.Require(t, err)
	stop := ports.Serve(func(error) {})
	defer stop()
	_, err = members.Join(t.Context(), fleettest.Log(t), api.NewControllersClient([]string{other}, credentials.Client()), address, ports.Nonce())
	fleettest.Require(t, err)
}

// Promise: Whoever joins the controllers without a controller's certificate, or in another's name, is refused.
func TestWhoMayNotJoinIsToldWhy(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c1 := startKeeper(t, ca, "c1", t.TempDir(), freeAddress(t))
	for _, role := range []pki.Role{pki.Ctl, pki.LB, pki.Agent} {
		_, err := controllersOf(ca.Issue(role, "x-"+string(role)), c1.address).AddController(t.Context(), &ballastv1.AddControllerRequest{Address: "127.0.0.1:1", Nonce: "1"})
		if connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("%s: %v", role, err)
		}
	}
	nameless := ca.Issue(pki.Controller, "c3")
	at := freeAddress(t)
	ports, err := bootstrap.Listen(bootstrap.Options{Listen: at, Credentials: nameless, Log: fleettest.Log(t)})
	fleettest.Require(t, err)
	defer ports.Serve(func(error) {})()
	for why, of := range map[string]struct{ name, address, nonce string }{
		"it is not where it says":                  {"c3", freeAddress(t), ports.Nonce()},
		"its certificate does not name it":         {"c3", at, ports.Nonce()},
		"another process of its name is there":     {"c3", at, "x"},
		"it has the name of the one that is asked": {"c1", at, ports.Nonce()},
		"it says nothing":                          {"c3", "", ""},
	} {
		credentials, err := pki.Load(ca.Dir, of.name, pki.Controller)
		fleettest.Require(t, err)
		_, err = controllersOf(credentials, c1.address).AddController(t.Context(), &ballastv1.AddControllerRequest{Address: of.address, Nonce: of.nonce})
		if code := connect.CodeOf(err); code != connect.CodeFailedPrecondition && code != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", why, err)
		}
		t.Log(why, ": ", err)
	}
}
