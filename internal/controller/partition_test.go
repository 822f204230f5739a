package controller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/report"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// link passes bytes on between a client and a server, unless it is held: then nothing arrives and nobody is told.
type link struct {
	mutex sync.Mutex
	open  *sync.Cond
	held  bool
	left  *int // connections that it still passes on; nil: any number
}

func newLink(t *testing.T, to string) (l *link, address string) {
	l = &link{}
	l.open = sync.NewCond(&l.mutex)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Require(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		listener.Close()
		l.hold(false)
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			if !l.takes() {
				client.Close()
				continue
			}
			running.Go(func() {
				server, err := net.Dial("tcp", to)
				if err != nil {
					client.Close()
					return
				}
				context.AfterFunc(ctx, func() { client.Close(); server.Close() })
				running.Go(func() { l.pass(client, server) })
				l.pass(server, client)
			})
		}
	})
	return l, listener.Addr().String()
}

// limit closes all connections after as many.
func (l *link) limit(connections int) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.left = &connections
}

func (l *link) takes() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.left == nil {
		return true
	}
	*l.left--
	return *l.left >= 0
}

func (l *link) pass(from, to net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		l.mutex.Lock()
		for l.held {
			l.open.Wait()
		}
		l.mutex.Unlock()
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (l *link) hold(held bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.held = held
	l.open.Broadcast()
}

// freeAddress is one that nobody listens at, and that no outgoing connection gets until somebody does, or while whoever did is away.
func freeAddress(t testing.TB) string {
	for {
		const first, ephemeral = 10000, 32768
		address := fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(ephemeral-first))
		listener, err := net.Listen("tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		fleettest.Require(t, err)
		listener.Close()
		return address
	}
}

// Promise: When no controller judges servers for 5 s, each load balancer judges all of them by its own checks,
// with `rise`, `fall` and `all_down`, also over restarts.
// Also held by TestItJudgesOnceNoControllerIsHeardForPatience and
// TestLoadBalancersWithoutControllersTakeOutServersThatFail.
// Promise: When etcd has no quorum, controllers send nodes what they know, refuse changes, and mark answers as
// possibly old.
// Also held by TestWhateverIsReadSaysWhenItMayBeOld.
func TestAControllerThatIsCutOffFromTheStoreGivesUpAndServesOn(t *testing.T) {
	etcdAddress := freeAddress(t)
	embedded, err := etcd.Embed(t.Context(), etcd.EmbedOptions{DataDir: t.TempDir(), ClientURL: "http://" + etcdAddress, Log: fleettest.Log(t)})
	fleettest.Require(t, err)
	t.Cleanup(func() { fleettest.Require(t, embedded.Close()) })
	way, address := newLink(t, etcdAddress)
	distant, err := etcd.Connect(t.Context(), etcd.ConnectOptions{Endpoints: []string{"http://" + address}, Log: fleettest.Log(t)})
	fleettest.Require(t, err)
	t.Cleanup(func() { way.hold(false); fleettest.Require(t, distant.Close()) })

	ca, dir, metrics := fleettest.NewAuthority(t), t.TempDir(), freeAddress(t)
	healthy := func(code int) func() bool {
		return func() bool {
			answer, err := http.Get("http://" + metrics + api.PathHealth)
			fleettest.Require(t, err)
			answer.Body.Close()
			return answer.StatusCode == code
		}
	}
	one := startController(t, ca, "c1", "127.0.0.1:0", distant, func(o *Options) { o.RunDir, o.Metrics = dir, metrics })
	for range 300 { // they keep nobody from the answer
		idle, err := net.Dial("tcp", metrics)
		fleettest.Require(t, err)
		t.Cleanup(func() { idle.Close() })
	}
	two := startController(t, ca, "c2", "127.0.0.1:0", embedded, nil)
	t.Cleanup(func() { way.hold(false) }) // before the controllers stop
	lb := joinAll(t, ca.Issue(pki.LB, "lb1"), one, two)
	var services []engine.ServiceView
	for i := range 8 {
		v := fleettest.LoadedService(fmt.Sprint("service", i), model.DispatchAWFD, 1, 2)
		v.Service.Load.Interval = model.Duration(50 * time.Millisecond)
		services = append(services, v)
	}
	operator := ca.Issue(pki.Ctl, "me")
	apply(t, one.client(operator), services...)
	weighed := func(after uint64) (last uint64, all bool) {
		lb.locked(func() bool {
			all = len(lb.weights) == len(services)
			for _, w := range lb.weights {
				last, all = max(last, w.Term), all && w.Term > after
			}
			return all
		})
		return last, all
	}
	leads := func() int {
		var s report.Status
		fleettest.Require(t, api.NewClient(api.SocketPath(dir, "c1")).Get(t.Context(), api.PathStatus, &s))
		return s.Leads
	}
	fleettest.Await(t, "both lead", func() bool { n := leads(); _, all := weighed(0); return all && n > 0 && n < len(services) })
	last, _ := weighed(0)
	fleettest.Await(t, "it is ready", healthy(http.StatusOK))
	controllers := func() (listed string) {
		answer, err := one.client(operator).ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		for _, n := range answer.Nodes {
			if n.Role == string(pki.Controller) {
				listed += fmt.Sprintf("%s %q: %s\n", n.Name, n.Ready, strings.Join(n.Problems, "; "))
			}
		}
		return listed
	}
	const bothReady = "c1 \"yes\": \nc2 \"yes\": \n"
	if listed := controllers(); listed != bothReady {
		t.Errorf("the controllers are listed as\n%s", listed)
	}

	way.hold(true)
	began := time.Now()
	fleettest.Await(t, "the other has taken over", func() bool { _, all := weighed(last); return all })
	t.Logf("taking over took %v", time.Since(began)) // how long it may take: TestTakingOverIsDoneInASecondAfterAControllerIsOffTheList
	fleettest.Await(t, "who is cut off has given up", func() bool { return leads() == 0 })
	t.Logf("giving up took %v", time.Since(began))
	fleettest.Await(t, "it is not ready", healthy(http.StatusServiceUnavailable))
	const cutOff = "c1 \"no\": it is not among the controllers that the store takes for alive: the store cannot be reached, or has no quorum\n" +
		"c2 \"\": as last known: c1, which was asked, hears nothing of the store\n"
	if listed := controllers(); listed != cutOff {
		t.Errorf("cut off, the controllers are listed as\n%s", listed)
	}
	if answer, err := one.client(operator).ListServers(t.Context(), &ballastv1.ListServersRequest{}); err != nil || !strings.Contains(answer.Unconfirmed, "did not confirm") {
		t.Errorf("cut off, it says of what it knows %q, %v", answer.GetUnconfirmed(), err)
	}
	if connected := lb.joined.Connected(); len(connected) != 2 {
		t.Errorf("streams to %v are left", connected)
	}
	late := joinAll(t, ca.Issue(pki.LB, "late"), one)
	fleettest.Await(t, "who is cut off tells what it knows", func() bool { return late.locked(func() bool { return len(late.states) == len(services) }) })
	fleettest.Await(t, "load balancers that hear it alone know that it judges nobody", func() bool { return !late.joined.Judged(time.Now()) })
	if !lb.joined.Judged(time.Now()) {
		t.Error("one that hears the other controller, too, takes nobody to judge")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := one.client(operator).RemoveService(ctx, &ballastv1.RemoveServiceRequest{Service: "service0"}); err == nil {
		t.Error("a change that cannot be written was taken")
	} else if code := connect.CodeOf(err); code != connect.CodeUnavailable && code != connect.CodeDeadlineExceeded {
		t.Errorf("a change that cannot be written: %v", err)
	}

	way.hold(false)
	fleettest.Await(t, "both lead again", func() bool { n := leads(); return n > 0 && n < len(services) })
	fleettest.Await(t, "it is ready again", healthy(http.StatusOK))
	fleettest.Await(t, "it judges again", func() bool { return late.joined.Judged(time.Now()) })
	fleettest.Await(t, "the others are heard of again", func() bool { return controllers() == bothReady })
	apply(t, two.client(operator), services[:2]...)
	fleettest.Await(t, "it knows what changed", func() bool { return late.locked(func() bool { return len(late.states) == 2 }) })
}
