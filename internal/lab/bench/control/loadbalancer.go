// One load balancer among the peers, and what is waited for of all of them.
package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

// loadBalancer knows of a fleet what is waited for; the one with maps knows all of it.
type loadBalancer struct {
	company *company
	index   int
	streams *nodeclient.Streams
	maps    *tables // nil: it has none

	// Callbacks of one controller come one at a time.
	services map[string]bool
	ids      map[uint32]bool // of the service that is followed
}

func (c *company) startLB(ctx context.Context, i int) error {
	credentials, hello, err := c.credentials(lbName(i), pki.LB)
	if err != nil {
		return err
	}
	lb := &loadBalancer{company: c, index: i, services: map[string]bool{}, ids: map[uint32]bool{}}
	if i == 0 {
		lb.maps = c.maps
	}
	send := make(chan *ballastv1.FromNode, 1) // the callbacks may come before Join returns
	lb.streams = nodeclient.New(nodeclient.Options{
		Controllers: []string{c.fleet.Controller}, Credentials: credentials, Hello: hello, Log: c.log, Dial: dial(&c.lbTraffic),
		OnState:   func(_ string, state *ballastv1.State) { lb.state(ctx, state, send) },
		OnWeights: lb.weights,
		OnLeft:    func(string) { c.lose(ctx, fmt.Errorf("load balancer %s: its stream has ended", lbName(i))) },
	})
	c.running.Go(func() { lb.streams.Run(ctx) })
	c.running.Go(func() {
		for {
			select {
			case message := <-send:
				lb.streams.Send(message)
			case <-ctx.Done():
				return
			}
		}
	})
	c.running.Go(func() { lb.reportTraffic(ctx) })
	return nil
}

// state takes what the fleet should be, and says that it is applied.
func (lb *loadBalancer) state(ctx context.Context, state *ballastv1.State, send chan<- *ballastv1.FromNode) {
	if state.Complete {
		clear(lb.services)
	}
	for _, name := range state.Gone {
		delete(lb.services, name)
	}
	for _, s := range state.Services {
		lb.services[s.Service.Name] = true
		if s.Service.Name == followedName {
			clear(lb.ids)
			for _, server := range s.Service.Servers {
				lb.ids[server.Id] = true
			}
		}
	}
	tracker := lb.company.tracker
	if lb.maps != nil {
		if err := lb.maps.take(state); err != nil {
			tracker.fail(err)
			return
		}
		tracker.written(len(lb.services), lb.ids, time.Now())
	}
	select {
	case send <- &ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: state.Revision}}}:
	case <-ctx.Done():
	}
	tracker.applied(lb.index, len(lb.services), lb.ids, time.Now())
}

func (lb *loadBalancer) weights(service string, update *follow.Update) {
	c := lb.company
	c.updates.Add(1)
	c.weights.Add(int64(len(update.Weights)))
	c.tracker.weighed(lb.index, update.Weights, time.Now())
	if lb.maps == nil {
		return
	}
	began := time.Now()
	if err := lb.maps.reweigh(service, update); err != nil {
		c.tracker.fail(err)
	}
	c.reweigh.add(microseconds(time.Since(began)))
}

// reportTraffic says that every server has got some more connections, as often as weights are made, as `ballast lb` does.
func (lb *loadBalancer) reportTraffic(ctx context.Context) {
	seen := uint64(0)
	lb.company.repeat(ctx, lb.company.fleet.Interval, func() {
		report := &ballastv1.TrafficReport{}
		seen++
		for id := range lb.company.fleet.Agents {
			report.Servers = append(report.Servers, &ballastv1.ServerTraffic{
				Service: followedName, Id: uint32(id + 1), Connections: 100 * seen, Closed: 90 * seen, Packets: 1000 * seen, Bytes: 100_000 * seen,
			})
		}
		lb.streams.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Traffic{Traffic: report}})
		lb.company.reports.Add(1)
	})
}

// moments are when what is expected has come: to the last, or to the only one.
type moments struct{ applied, written, weighed time.Time }

// tracker waits until all load balancers have what is expected.
type tracker struct {
	size int

	mutex        sync.Mutex
	id           uint32 // a server of the service that is followed; 0: services are counted
	services     int
	haveState    map[int]bool
	haveWeight   map[int]bool
	wantsWritten bool
	at           moments
	failed       error
	changed      chan struct{}
}

func newTracker(size int) *tracker { return &tracker{size: size, changed: make(chan struct{})} }

// expect forgets what was expected before. What is there already when it comes next counts, too.
func (t *tracker) expect(id uint32, services int, written bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.id, t.services, t.wantsWritten = id, services, written
	t.haveState, t.haveWeight = map[int]bool{}, map[int]bool{}
	t.at = moments{}
}

func (t *tracker) fits(services int, ids map[uint32]bool) bool {
	if t.id != 0 {
		return ids[t.id]
	}
	return services >= t.services
}

func (t *tracker) note(change func()) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	change()
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *tracker) applied(lb, services int, ids map[uint32]bool, now time.Time) {
	t.note(func() {
		if t.fits(services, ids) && !t.haveState[lb] {
			t.haveState[lb], t.at.applied = true, now
		}
	})
}

func (t *tracker) written(services int, ids map[uint32]bool, now time.Time) {
	t.note(func() {
		if t.fits(services, ids) && t.at.written.IsZero() {
			t.at.written = now
		}
	})
}

func (t *tracker) weighed(lb int, weights []model.Share, now time.Time) {
	t.mutex.Lock()
	waits := t.id != 0 && !t.haveWeight[lb]
	id := t.id
	t.mutex.Unlock()
	if !waits {
		return
	}
	for _, share := range weights {
		if uint32(share.ID) == id {
			t.note(func() { t.haveWeight[lb], t.at.weighed = true, now })
			return
		}
	}
}

func (t *tracker) fail(err error) { t.note(func() { t.failed = err }) }

// now returns what has come so far, and what has failed.
func (t *tracker) now() (at moments, states, weights int, failed error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.at, len(t.haveState), len(t.haveWeight), t.failed
}

// wait returns when the last load balancer had the state and, if a server is expected, its weight.
func (t *tracker) wait(ctx context.Context) (moments, error) {
	for deadline := time.After(patience); ; {
		t.mutex.Lock()
		changed := t.changed
		wanted := t.size
		if t.id == 0 {
			wanted = 0 // weights
		}
		wantsWritten := t.wantsWritten
		t.mutex.Unlock()
		at, states, weights, failed := t.now()
		if failed != nil || states == t.size && weights >= wanted && (!wantsWritten || !at.written.IsZero()) {
			return at, failed
		}
		select {
		case <-changed:
		case <-deadline:
			return at, fmt.Errorf("in %v only %d of %d load balancers got the state, %d the weight, maps written: %v",
				patience, states, t.size, weights, !at.written.IsZero())
		case <-ctx.Done():
			return at, ctx.Err()
		}
	}
}
