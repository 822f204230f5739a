package controller

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/controller/bootstrap"
	"github.com/ballast-lb/ballast/internal/controller/desired/desiredtest"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// Of the 3 s that taking over may last a lease takes 2 s.
const takeOverMax = time.Second

// The clock is the bubble's: it stands still while anybody works, so that how busy the machine is does not matter.
func TestTakingOverIsDoneInASecondAfterAControllerIsOffTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := fleettest.NewAuthority(t)
		credentials := []*pki.Credentials{ca.Issue(pki.Controller, "c1"), ca.Issue(pki.Controller, "c2")}
		node := ca.Issue(pki.LB, "lb1")
		s := storetest.Open(t)
		one, atOne, stop := runWithoutNetwork(t, credentials[0], s)
		_, atTwo, _ := runWithoutNetwork(t, credentials[1], s)
		lb := joinAt(t, node, func(_ context.Context, _, address string) (net.Conn, error) {
			return map[string]func() net.Conn{"c1:1": atOne, "c2:1": atTwo}[address](), nil
		}, "c1:1", "c2:1")
		time.Sleep(10 * time.Second)
		var services []engine.ServiceView
		for i := range 16 {
			services = append(services, fleettest.LoadedService(fmt.Sprint("service", i), model.DispatchAWFD, 1, 2))
		}
		desiredtest.Change(t, stateOf(one), desiredtest.AddService(services...))
		time.Sleep(10 * time.Second)
		weighed := func(after uint64) (count int, last uint64) {
			lb.locked(func() bool {
				for _, w := range lb.weights {
					last = max(last, w.Term)
					if w.Term > after {
						count++
					}
				}
				return true
			})
			return count, last
		}
		if status := one.report.Status(); status.Leads == 0 || status.Leads == len(services) {
			t.Fatalf("one leads %d services", status.Leads)
		}
		count, term := weighed(0)
		if count != len(services) {
			t.Fatalf("%d services have weights", count)
		}
		stop()
		time.Sleep(takeOverMax)
		synctest.Wait()
		if count, last := weighed(term); count != len(services) {
			t.Errorf("%v after the other has gone, %d services of %d have weights of a later term than %d: %d", takeOverMax, count, len(services), term, last)
		}
	})
}

// runWithoutNetwork runs all of a controller that decides, and serves nodes, until the test ends or stop is called.
func runWithoutNetwork(t *testing.T, credentials *pki.Credentials, s store.Store) (c *controller, connect func() net.Conn, stop func()) {
	c = newController(Options{Log: fleettest.Log(t)}, credentials, openedStore{Store: s}, "127.0.0.1:6443", &bootstrap.Ports{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, job := range c.jobs() {
		running.Go(func() { job(ctx) })
	}
	listener := apitest.NewPipes()
	running.Go(func() { hub.Serve(ctx, listener, credentials, nil, c.routes(), nil) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return c, listener.Connect, stop
}
