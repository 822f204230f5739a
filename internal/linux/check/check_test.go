package check

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
)

// A switchboard stands for servers: it answers as it is told, per address, and counts.
type switchboard struct {
	mu          sync.Mutex
	down        map[netip.Addr]string
	checks      map[netip.Addr]int
	busy, most  int
	overlapping bool
	hold        chan struct{} // connections wait for it, if there is one
	active      map[netip.Addr]bool
}

func newSwitchboard() *switchboard {
	return &switchboard{down: map[netip.Addr]string{}, checks: map[netip.Addr]int{}, active: map[netip.Addr]bool{}}
}

func (s *switchboard) dial(ctx context.Context, t Target, _ uint16, _ []byte) (net.Conn, Remarks, error) {
	s.mu.Lock()
	s.checks[t.Address]++
	s.overlapping = s.overlapping || s.active[t.Address]
	s.active[t.Address] = true
	s.busy++
	s.most = max(s.most, s.busy)
	why := s.down[t.Address]
	s.mu.Unlock()
	if why == noAnswer {
		<-ctx.Done()
		why = ctx.Err().Error()
	}
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	s.active[t.Address] = false
	s.busy--
	s.mu.Unlock()
	if why != "" {
		return nil, Remarks{}, fmt.Errorf("%s", why)
	}
	a, b := net.Pipe()
	b.Close()
	return a, Remarks{}, nil
}

// silence makes a server answer nothing any more: who asks it waits until its time is up.
func (s *switchboard) silence(address netip.Addr) { s.set(address, noAnswer) }

const noAnswer = "no answer"

func (s *switchboard) set(address netip.Addr, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down[address] = why
}

func (s *switchboard) count(address netip.Addr) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checks[address]
}

// A prober that runs until the test ends, with what it has told.
type probing struct {
	*Prober
	mu    sync.Mutex
	told  []Result
	ended chan struct{}
	end   context.CancelFunc
}

func startProber(t *testing.T, o Options) *probing {
	p := &probing{ended: make(chan struct{})}
	o.NewVerdict = func(*Target) Verdict { return &health.Server{} }
	o.Timing = Timing{First: health.First, Next: health.Next}
	o.Changed = func(r Result) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.told = append(p.told, r)
	}
	p.Prober = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	p.end = cancel
	go func() {
		p.Run(ctx)
		close(p.ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-p.ended
	})
	return p
}

func (p *probing) last(id uint16) (last Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.told {
		if r.ID == id {
			last = r
		}
	}
	return last
}

func (p *probing) all(id uint16) (found Result) {
	for _, r := range p.All() {
		if r.ID == id {
			found = r
		}
	}
	return found
}

func quick() model.Health {
	return model.Health{Check: model.CheckTCP, Interval: model.Duration(20 * time.Millisecond), Timeout: model.Duration(20 * time.Millisecond), Rise: 2, Fall: 3}
}

func server(id uint16) Target {
	address := netip.AddrFrom4([4]byte{10, 0, byte(id >> 8), byte(id)})
	return Target{Service: "web", ID: id, Address: address, VIP: netip.MustParseAddr("198.51.100.1"), Port: 80, Health: quick()}
}

func TestChangesAreToldAtOnceAndWhatIsKnownCanBeAskedFor(t *testing.T) {
	board := newSwitchboard()
	p := startProber(t, Options{Dial: board.dial})
	a, b := server(1), server(2)
	p.Set([]Target{a, b})
	await.True(t, "both are healthy", func() bool { return p.last(1).Healthy && p.last(2).Healthy })
	board.set(a.Address, "no route to host")
	await.True(t, "server 1 is unhealthy", func() bool { return !p.last(1).Healthy })
	if have := p.last(1); have.Service != "web" || have.Detail != "connect: no route to host" || have.Direct != "" {
		t.Errorf("told %+v", have)
	}
	if have := p.All(); len(have) != 2 || have[0].Healthy || !have[1].Healthy || have[1].Detail != "" {
		t.Errorf("known: %+v", have)
	}
	board.set(a.Address, "")
	await.True(t, "server 1 is healthy again", func() bool { return p.last(1).Healthy })
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.told) != 4 {
		t.Errorf("told %d times, want 4: %+v", len(p.told), p.told)
	}
}

// The clock is the bubble's: it stands still while anybody works.
func TestAVerdictComesWithinFallOrRiseIntervals(t *testing.T) {
	for range 20 { // checks begin at random times
		synctest.Test(t, func(t *testing.T) {
			board := newSwitchboard()
			p := startProber(t, Options{Dial: board.dial})
			one := server(1)
			p.Set([]Target{one})
			told := func(healthy bool, within time.Duration) {
				t.Helper()
				time.Sleep(within)
				synctest.Wait()
				if p.last(1).Healthy != healthy {
					t.Errorf("%v after it changed, healthy is not %t", within, healthy)
				}
			}
			interval, timeout := time.Duration(one.Health.Interval)*11/10, time.Duration(one.Health.Timeout)
			told(true, 10*interval)
			board.set(one.Address, "connection refused")
			told(false, time.Duration(one.Health.Fall)*interval)
			board.set(one.Address, "")
			told(true, time.Duration(one.Health.Rise)*interval)
			board.silence(one.Address)
			told(false, time.Duration(one.Health.Fall)*interval+timeout)
		})
	}
}

func TestSettingTargetsLeavesThoseThatStayAlone(t *testing.T) {
	board := newSwitchboard()
	p := startProber(t, Options{Dial: board.dial})
	a, b := server(1), server(2)
	board.set(a.Address, "down")
	p.Set([]Target{a, b})
	await.True(t, "server 1 is unhealthy", func() bool { return p.last(1).Detail != "" })
	// Configured anew: what is known stays, the new interval holds at once.
	a.Health.Interval, a.Health.Rise = model.Duration(time.Hour), 3
	p.Set([]Target{a, server(3)})
	if have := p.all(1); have.Healthy || have.Detail == "" {
		t.Errorf("server 1 is forgotten: %+v", have)
	}
	await.True(t, "the new server is known", func() bool { return p.all(3).Healthy })
	if have := p.all(2); have.ID != 0 {
		t.Errorf("the server that has gone is still known: %+v", have)
	}
	a.Health.Interval = quick().Interval
	p.Set([]Target{a})
	before := board.count(a.Address)
	await.True(t, "the shorter interval holds", func() bool { return board.count(a.Address) > before+3 })
	// Another address is another server.
	a.Address = netip.MustParseAddr("10.0.9.9")
	p.Set([]Target{a})
	await.True(t, "the new server 1 is healthy", func() bool { return p.last(1).Healthy })
	gone := board.count(server(1).Address)
	await.True(t, "the new server 1 is checked on", func() bool { return board.count(a.Address) > 3 })
	if board.count(server(1).Address) > gone+1 { // one may have been about to begin
		t.Error("the former address is still checked")
	}
}

func TestOneCheckOfAServerAtATimeAndSoManyOfAll(t *testing.T) {
	board := newSwitchboard()
	board.hold = make(chan struct{})
	p := startProber(t, Options{Dial: board.dial, Concurrency: 7})
	var targets []Target
	for id := range uint16(50) {
		s := server(id + 1)
		s.Health.Timeout = model.Duration(time.Minute)
		targets = append(targets, s)
	}
	p.Set(targets)
	await.True(t, "seven checks run", func() bool {
		board.mu.Lock()
		defer board.mu.Unlock()
		return board.busy == 7
	})
	for range 500 {
		board.hold <- struct{}{}
	}
	board.mu.Lock()
	defer board.mu.Unlock()
	if board.overlapping || board.most != 7 {
		t.Errorf("%d checks at a time, want 7; two of one server: %v", board.most, board.overlapping)
	}
}

func TestChecksBeginAtRandomTimesOfTheInterval(t *testing.T) {
	board := newSwitchboard()
	var drawn atomic.Int64
	p := startProber(t, Options{Dial: board.dial, Random: func() float64 { drawn.Add(1); return 0.999 }})
	late := server(1)
	late.Health.Interval = model.Duration(time.Hour)
	p.Set([]Target{late, server(2)})
	await.True(t, "server 2 is checked", func() bool { return board.count(server(2).Address) > 5 })
	if board.count(late.Address) > 0 {
		t.Error("the first check of an interval of an hour was at once")
	}
	if drawn.Load() < 7 {
		t.Errorf("%d random numbers for 7 waits", drawn.Load())
	}
}

func TestTheEndOfTheProberEndsChecksThatRun(t *testing.T) {
	board := newSwitchboard()
	board.hold = make(chan struct{})
	p := startProber(t, Options{Dial: board.dial})
	s := server(1)
	s.Health.Timeout = model.Duration(time.Hour)
	p.Set([]Target{s})
	await.True(t, "a check runs", func() bool { return board.count(s.Address) == 1 })
	p.end()
	<-p.ended
	p.Set([]Target{server(2)})
	if have := p.last(1); have.ID != 0 {
		t.Errorf("a check that was ended says %+v", have)
	}
}

func TestAServerThatAnswersAgainIsToldToWait(t *testing.T) {
	board := newSwitchboard()
	p := startProber(t, Options{Dial: board.dial})
	s := server(1)
	s.Health.Rise = 200
	board.set(s.Address, "connection refused")
	p.Set([]Target{s})
	await.True(t, "it is unhealthy", func() bool { return p.last(1).Detail != "" })
	board.set(s.Address, "")
	const want = "answers again after connect: connection refused, needs 200 successful checks in a row"
	await.True(t, "its detail says so", func() bool { return p.all(1).Detail == want })
	before := board.count(s.Address)
	await.True(t, "it stays so", func() bool { return board.count(s.Address) > before+5 })
	if have := p.all(1); have.Detail != want || have.Healthy {
		t.Errorf("%+v", have)
	}
}

func TestACheckThatWentStraightSaysWhy(t *testing.T) {
	listener := silent(t)
	at := netip.MustParseAddrPort(listener)
	p := startProber(t, Options{Dial: func(context.Context, Target, uint16, []byte) (net.Conn, Remarks, error) {
		return nil, Remarks{Direct: "the VIP is this host's own"}, nil
	}})
	s := server(1)
	s.Address, s.Port = at.Addr(), at.Port()
	s.Health.Timeout = model.Duration(patience)
	p.Set([]Target{s})
	await.True(t, "it is healthy", func() bool { return p.all(1).Healthy })
	if have := p.all(1).Direct; have != "the VIP is this host's own" {
		t.Errorf("straight because %q", have)
	}
}

// What this host lacks is no reason to take its servers out.
//
// Promise: A load balancer without free ports or file descriptors reports no check results.
func TestAHostThatHasRunOutOfSomethingJudgesNobody(t *testing.T) {
	p := startProber(t, Options{Dial: func(context.Context, Target, uint16, []byte) (net.Conn, Remarks, error) {
		return nil, Remarks{}, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	}})
	p.Set([]Target{server(1)})
	await.True(t, "checks are skipped", func() bool { return p.Skipped().Checks > 5 })
	if have := p.All(); have != nil {
		t.Errorf("judged: %+v", have)
	}
	if have := p.Skipped().Last; have != "check server  of service web: connect: too many open files" {
		t.Errorf("skipped because of %q", have)
	}
}

func TestThousandsOfTargetsAreChecked(t *testing.T) {
	board := newSwitchboard()
	p := startProber(t, Options{Dial: board.dial})
	var targets []Target
	for id := range uint16(5000) {
		s := server(id + 1)
		s.Health.Interval = model.Duration(time.Second)
		if id%10 == 0 {
			board.set(s.Address, "down")
		}
		targets = append(targets, s)
	}
	p.Set(targets)
	await.True(t, "all are known", func() bool { return len(p.All()) == 5000 })
	down := 0
	for _, r := range p.All() {
		if !r.Healthy {
			down++
		}
	}
	if down != 500 {
		t.Errorf("%d of 5000 are down, want 500", down)
	}
}

func TestTargetsAreTheServersThatGetPackets(t *testing.T) {
	svc := model.NewService()
	svc.Name, svc.VIP, svc.Ports = "web", netip.MustParseAddr("198.51.100.1"), []uint16{80, 81}
	svc.Health.Check = model.CheckHTTP
	for i, state := range []model.ServerState{model.StateActive, model.StateDraining, model.StateOff} {
		svc.Servers = append(svc.Servers, model.Server{ID: uint16(i + 1), Name: fmt.Sprint("s", i+1), Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), State: state})
	}
	svc.Servers[1].Port = 8080
	targets := Targets(&svc)
	if len(targets) != 2 || targets[0].ID != 1 || targets[0].Port != 80 || targets[1].Name != "s2" || targets[1].Port != 8080 {
		t.Errorf("%+v", targets)
	}
	svc.Health.Check = model.CheckNone
	if have := Targets(&svc); have != nil {
		t.Errorf("without a check: %+v", have)
	}
}
