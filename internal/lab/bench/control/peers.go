// The peers: agents and load balancers, all in one process.
package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/stagger"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants.
const (
	rejoinMax      = 2 * time.Second
	garbagePercent = 400 // memory of the peers is not measured, and their CPU time is the controller's on a small machine
)

// company is the child's side of a measurement.
type company struct {
	fleet   fleetOfPeers
	log     *slog.Logger
	tracker *tracker
	running sync.WaitGroup
	maps    *tables // nil: nobody has any

	reports, updates, weights atomic.Int64
	lost                      atomic.Int64 // streams
	lastLoss                  atomic.Pointer[error]
	lbTraffic, agentTraffic   trafficCounter
	reweigh                   samples
	reporting                 chan struct{} // closed when reports begin
}

type trafficCounter struct{ read, written atomic.Int64 }

// samples are collected by several.
type samples struct {
	mutex  sync.Mutex
	values []float64
}

func (s *samples) add(value float64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.values = append(s.values, value)
}

func (s *samples) all() []float64 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return append([]float64(nil), s.values...)
}

// RunPeers is the child process: it reads what to be and what to do, and answers, until its input ends.
func RunPeers(ctx context.Context, in io.Reader, out io.Writer) error {
	debug.SetGCPercent(garbagePercent)
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	c := &company{log: slog.New(slog.DiscardHandler), reporting: make(chan struct{})}
	if err := decoder.Decode(&c.fleet); err != nil {
		return fmt.Errorf("read what peers there are: %w", err)
	}
	c.tracker = newTracker(c.fleet.LoadBalancers)
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		if c.running.Wait(); c.maps != nil {
			c.maps.close()
		}
	}()
	for {
		var r request
		if err := decoder.Decode(&r); err != nil {
			return nil // the end of the input
		}
		a, err := c.do(ctx, r)
		if a.At = time.Now(); err != nil {
			a.Error = err.Error()
		}
		if err := encoder.Encode(a); err != nil {
			return err
		}
	}
}

func (c *company) do(ctx context.Context, r request) (a answer, err error) {
	switch r.Do {
	case askPlan:
		a.Plan, a.Write, err = planAlone(&c.fleet)
	case askJoin:
		err = c.join(ctx)
	case askReport:
		close(c.reporting)
	case askCount:
		a.Counts = counts{c.reports.Load(), c.updates.Load(), c.weights.Load(), c.lost.Load(),
			traffic{c.lbTraffic.read.Load(), c.lbTraffic.written.Load()}, traffic{c.agentTraffic.read.Load(), c.agentTraffic.written.Load()}}
		a.CPU, _ = used()
		a.Reweigh = c.reweigh.all()
	case askExpect:
		c.tracker.expect(r.ID, r.Services, c.maps != nil)
	case askSeen:
		var at moments
		at, err = c.tracker.wait(ctx)
		a.Applied, a.Written, a.Weighed = at.applied, at.written, at.weighed
	default:
		err = fmt.Errorf("asked for %q: the two processes are of different versions", r.Do)
	}
	return a, err
}

// dial counts what goes through a connection.
func dial(counter *trafficCounter) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		connection, err := new(net.Dialer).DialContext(ctx, network, address)
		return &countedConnection{connection, counter}, err
	}
}

type countedConnection struct {
	net.Conn
	counter *trafficCounter
}

func (c *countedConnection) Read(to []byte) (int, error) {
	n, err := c.Conn.Read(to)
	c.counter.read.Add(int64(n))
	return n, err
}

func (c *countedConnection) Write(from []byte) (int, error) {
	n, err := c.Conn.Write(from)
	c.counter.written.Add(int64(n))
	return n, err
}

// join starts all peers and returns when each has the state.
func (c *company) join(ctx context.Context) error {
	c.tracker.expect(0, 1, false)
	if c.fleet.Maps {
		var err error
		if c.maps, err = openTables(&c.fleet); err != nil {
			return err
		}
	}
	agents := make(chan struct{}, c.fleet.Agents)
	for i := range c.fleet.LoadBalancers {
		if err := c.startLB(ctx, i); err != nil {
			return err
		}
	}
	for i := range c.fleet.Agents {
		if err := c.startAgent(ctx, i, agents); err != nil {
			return err
		}
	}
	deadline := time.After(patience)
	for i := range c.fleet.Agents {
		select {
		case <-agents:
		case <-deadline:
			err := fmt.Errorf("only %d of %d agents have joined in %v", i, c.fleet.Agents, patience)
			if why := c.lastLoss.Load(); why != nil {
				err = fmt.Errorf("%w: %w", err, *why)
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	_, err := c.tracker.wait(ctx)
	return err
}

func (c *company) credentials(name string, role pki.Role) (*pki.Credentials, func() *ballastv1.Hello, error) {
	credentials, err := pki.Load(c.fleet.Directory, name, role)
	hello := func() *ballastv1.Hello {
		return &ballastv1.Hello{Protocol: api.ControlProtocol, Role: string(role), Name: name, Version: "bench"}
	}
	return credentials, hello, err
}

// repeat does something once in each interval, at a random time, from when reports begin.
func (c *company) repeat(ctx context.Context, interval time.Duration, do func()) {
	select {
	case <-c.reporting:
	case <-ctx.Done():
		return
	}
	times := stagger.New(time.Now(), interval, rand.Float64())
	timer := time.NewTimer(time.Until(times.At))
	defer timer.Stop()
	for {
		select {
		case now := <-timer.C:
			do()
			times.Next(now, interval, rand.Float64())
			timer.Reset(time.Until(times.At))
		case <-ctx.Done():
			return
		}
	}
}
