package controller

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Of the 3 s that taking over may last a lease takes 2 s.
const takeOverMax = time.Second

// The clock is the bubble's: it stands still while anybody works, so that how busy the machine is does not matter.
func TestTakingOverIsDoneInASecondAfterAControllerIsOffTheList(t *testing.T) {
	ca := newAuthority(t)
	credentials := []*pki.Credentials{ca.issue(pki.Controller, "c1"), ca.issue(pki.Controller, "c2")}
	synctest.Test(t, func(t *testing.T) {
		s := newMemory(t)
		one, stop := runWithoutNetwork(t, credentials[0], s)
		two, _ := runWithoutNetwork(t, credentials[1], s)
		time.Sleep(10 * time.Second)
		var services []ServiceView
		for i := range 16 {
			services = append(services, loadedService(fmt.Sprint("service", i), model.DispatchAWFD, 1, 2))
		}
		change(t, one.desired, addService(services...))
		time.Sleep(10 * time.Second)
		led := func(c *controller) (count int, last uint64) {
			c.hub.mutex.Lock()
			defer c.hub.mutex.Unlock()
			for i := range services {
				if w := c.hub.weights[fmt.Sprint("service", i)]; w != nil {
					count, last = count+1, max(last, w.term)
				}
			}
			return count, last
		}
		first, term := led(one)
		second, _ := led(two)
		if first == 0 || second == 0 || first+second != len(services) {
			t.Fatalf("they lead %d and %d services", first, second)
		}
		stop()
		time.Sleep(takeOverMax)
		synctest.Wait()
		if count, last := led(two); count != len(services) || last <= term {
			t.Errorf("%v after the other has gone, %d services of %d have weights, of term %d after %d", takeOverMax, count, len(services), last, term)
		}
	})
}

// runWithoutNetwork runs all of a controller that decides, until the test ends or stop is called.
func runWithoutNetwork(t *testing.T, credentials *pki.Credentials, s store.Store) (c *controller, stop func()) {
	c = newController(Options{Log: testLog(t)}, credentials, s, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 6443})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, job := range []func(context.Context){c.desired.Follow, c.spread, c.divide, c.engine.Run, c.write} {
		running.Go(func() { job(ctx) })
	}
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return c, stop
}
