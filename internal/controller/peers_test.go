package controller

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// keeper is a controller that keeps the state itself, and can be started again with what it has.
type keeper struct {
	*running
	dir, address string
}

// startKeeper starts a controller with the state in dir, at an address that its certificate names.
func startKeeper(t testing.TB, ca *fleettest.Authority, name, dir, address string, join ...string) *keeper {
	t.Helper()
	if _, err := os.Stat(filepath.Join(ca.Dir, name+".crt")); err != nil {
		ca.Issue(pki.Controller, name, "127.0.0.1")
	}
	return &keeper{startController(t, ca, name, address, nil, func(o *Options) { o.DataDir, o.Join = dir, join }), dir, address}
}

// controllersOf is a client for what controllers say of themselves.
func controllersOf(credentials *pki.Credentials, addresses ...string) ballastv1connect.ControllersClient {
	return api.NewControllersClient(addresses, credentials.Client())
}

// listed waits until the list of controllers is as wanted: NAME STATE alive|dead.
func listed(t testing.TB, client ballastv1connect.ControllersClient, wanted ...string) {
	t.Helper()
	last := ""
	defer func() { t.Logf("listed: %s", last) }()
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
		last = fmt.Sprint(found, err)
		return slices.Equal(found, wanted)
	})
}

func TestAFleetGoesFromOneControllerToThreeAndBack(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	operator := ca.Issue(pki.Ctl, "me")
	c1 := startKeeper(t, ca, "c1", t.TempDir(), freeAddress(t))
	at := []string{c1.address, freeAddress(t), freeAddress(t)}
	lb := joinAll(t, ca.Issue(pki.LB, "lb1"), c1.running)
	apply(t, c1.client(operator), fleettest.Service("web", 1))

	// Somebody goes on changing the fleet, and remembers what was acknowledged.
	client := api.NewFleetClient(at, operator.Client())
	changing, stop := context.WithCancel(t.Context())
	var acknowledged atomic.Int64
	var changer sync.WaitGroup
	changer.Go(func() {
		for id := 2; changing.Err() == nil; id++ {
			name := fmt.Sprint("s", id)
			server := &ballastv1.Server{Name: name, Address: fmt.Sprintf("10.1.%d.%d", id/250, id%250+1)}
			for changing.Err() == nil {
				if _, err := client.AddServer(t.Context(), &ballastv1.AddServerRequest{Service: "web", Server: server}); err == nil || connect.CodeOf(err) == connect.CodeAlreadyExists {
					acknowledged.Store(int64(id))
					break
				}
			}
		}
	})
	defer changer.Wait()
	defer stop()
	progress := func(what string) {
		t.Helper()
		before := acknowledged.Load()
		fleettest.Await(t, "changes go on: "+what, func() bool { return acknowledged.Load() > before+2 })
	}
	progress("with one")
	c2 := startKeeper(t, ca, "c2", t.TempDir(), at[1], at[0])
	progress("with two")
	c3 := startKeeper(t, ca, "c3", t.TempDir(), at[2], at[1], at[0])
	progress("with three")
	list := controllersOf(operator, at...)
	listed(t, list, "c1 voter alive", "c2 voter alive", "c3 voter alive")
	c1.stop()
	progress("without the first")
	startKeeper(t, ca, "c1", c1.dir, at[0], at[1]) // it has joined before
	listed(t, list, "c1 voter alive", "c2 voter alive", "c3 voter alive")
	progress("with the first again")
	for _, leaving := range []*keeper{c3, c2} {
		leaving.stop()
		name := map[*keeper]string{c2: "c2", c3: "c3"}[leaving]
		fleettest.Await(t, name+" is removed", func() bool {
			_, err := list.RemoveController(t.Context(), &ballastv1.RemoveControllerRequest{Name: name})
			return err == nil
		})
		progress("without " + name)
	}
	_ = lb
}

func TestWhoeverIsNoControllerJoinsNone(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c1 := startKeeper(t, ca, "c1", t.TempDir(), freeAddress(t))
	for _, role := range []pki.Role{pki.Ctl, pki.LB, pki.Agent} {
		_, err := controllersOf(ca.Issue(role, "x-"+string(role)), c1.address).AddController(t.Context(), &ballastv1.AddControllerRequest{Address: "127.0.0.1:1", Nonce: "1"})
		if connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("%s: %v", role, err)
		}
	}

}
