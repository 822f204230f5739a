// Package check finds out which servers answer: it connects to each of them again and again, as its service's health says.
//
//	tcp    the connection is accepted
//	http   a status of 2xx or 3xx; redirects are not followed, the body does not count
//	https  the same inside TLS
//	tls    the handshake succeeds
//	grpc   grpc.health.v1 says SERVING
//	grpcs  the same inside TLS
//	exec   a program ends with status 0
//	quic   the versions of QUIC that it has are listed (RFC 9000 6)
//	udp    a datagram is answered as expected
//	dns    a query is answered with the response code expected
//
// Certificates are verified only when the health has a host: it is the name that the certificate must be for, and the
// Host header (http, https) or the authority (grpc, grpcs).
//
// A connection goes to the VIP by the way that traffic takes, when Options.Dial can do that, so that a server whose tunnel,
// agent or VIP is missing is found out too. Otherwise it goes straight to the server's address, and Result.Direct says why.
// Targets without a VIP are load balancers of the second tier: their own address is all there is.
// Connections are reset when the check is done: an orderly end would leave thousands of ports waiting on this host. Those of http and https end
// by FIN where the server has closed first.
//
// An exec check finds BALLAST_SERVICE, BALLAST_SERVER (its name), BALLAST_ADDRESS, BALLAST_PORT and BALLAST_VIP in its environment, and PATH,
// nothing else. It runs in a process group of its own, which is killed at the timeout. Which programs may run is for Options.Exec to say.
package check

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Target is a server to check.
type Target struct {
	Service string
	ID      uint16
	Name    string
	VIP     netip.Addr // zero: none, it is asked at its own address
	Address netip.Addr
	Port    uint16 // where it serves; Health.Port, if there is one, is checked instead
	Health  model.Health
	// Unhealthy is what is known of it before its first check.
	Unhealthy bool
}

// Targets returns those of a service: all servers that get packets. Without a check there are none.
func Targets(svc *model.Service) (targets []Target) {
	if svc.Health.Check == model.CheckNone {
		return nil
	}
	for i := range svc.Servers {
		server := &svc.Servers[i]
		if server.State == model.StateOff {
			continue
		}
		vip := svc.VIPFor(server.Address)
		if svc.Functions() { // whose addresses are nobody's own
			vip = netip.Addr{}
		}
		targets = append(targets, Target{Service: svc.Name, ID: server.ID, Name: server.Name, VIP: vip, Address: server.Address,
			Port: svc.Endpoint(server).Port(), Health: svc.Health})
	}
	return targets
}

// checkedPort is where the check goes.
func (t *Target) checkedPort() uint16 {
	if t.Health.Port != 0 {
		return t.Health.Port
	}
	return t.Port
}

// named is the address that is asked for.
func (t *Target) named() netip.Addr {
	if t.VIP.IsValid() {
		return t.VIP
	}
	return t.Address
}

// Cookie is what there was to see of a server's cookie in its answer.
type Cookie uint8

const (
	CookieNotSeen Cookie = iota // nobody looked, or there was no answer
	CookieOwn
	CookieForeign // what is there is not the server's own
	CookieMissing // the answer has no TCP timestamps
)

// Remarks are what there is to say of a check besides whether it succeeded.
type Remarks struct {
	Direct     string // why it went straight to the server's address; empty: it took the way of traffic
	Cookie     Cookie
	Unanswered bool // not even a refusal has come back
	SentBy     int  // device that XDP redirected its first packet to, which was not answered; 0: it was, or the kernel sent it
}

// Result is what is known of one target.
type Result struct {
	Service string
	ID      uint16
	Healthy bool
	Detail  string // why not
	// Succeeded is when the last check that succeeded began; zero: none has.
	Succeeded time.Time
	Remarks   // of the last check
}

// Verdict is the machine that results of checks are fed to; *health.Server of internal/machine/health is one.
type Verdict interface {
	Observe(now time.Time, ok bool, h *model.Health) (changed bool)
	Healthy() bool
	Known() bool
	Required(now time.Time, h *model.Health) int
}

// Timing says when checks happen; internal/machine/health has both functions.
type Timing struct {
	First func(h *model.Health, random float64) time.Duration // until the first check
	Next  func(h *model.Health, random float64) time.Duration // from the beginning of one to the beginning of the next
}

// Options of a Prober. NewVerdict and Timing are needed; the rest may be left out.
type Options struct {
	NewVerdict func(t *Target) Verdict
	Timing     Timing
	// Dial opens a connection to that port of the target's VIP by the way that traffic takes: by TCP, or with a hello by UDP, on which it sends that.
	// Where remarks say Direct and nothing was tried, the prober connects to the server's address itself. Without Dial it always does.
	Dial func(ctx context.Context, t Target, port uint16, hello []byte) (conn net.Conn, remarks Remarks, err error)
	// Changed is told each verdict that is new, at once. It is called from many goroutines, for one server in order, and
	// perhaps once more for a target that has just been taken away.
	Changed func(Result)
	// Silent is told the target of each check that got no answer at all, from many goroutines; nil: nobody is.
	Silent func(Target)
	// Exec says which programs exec checks may run. Checks of others decide nothing, see Refused.
	Exec Exec
	// Concurrency is how many checks run at a time; 0: DefaultConcurrency. When they are not enough, checks come later.
	Concurrency int
	Roots       *x509.CertPool // that certificates are verified by; nil: the system's
	Random      func() float64 // in [0, 1); nil: math/rand
}

// Implementation constants.
const (
	DefaultConcurrency = 1024
	execConcurrency    = 64 // programs cost more than connections
)

// Skipped are checks that this host could not make, for want of descriptors, ports, memory or processes. They say nothing about servers
// and decide nothing.
type Skipped struct {
	Checks uint64
	Last   string // what was wanting
}

// A Prober checks targets. Its methods are safe for concurrent use.
type Prober struct {
	options      Options
	slots, execs chan struct{}

	mu      sync.Mutex
	targets map[key]*tracked
	skipped Skipped
	running context.Context // of Run
	group   sync.WaitGroup
}

type key struct {
	service string
	id      uint16
}

// tracked is a target with what is known of it. Its fields are protected by Prober.mu.
type tracked struct {
	target  Target
	verdict Verdict
	result  Result
	failure string // the last
	gone    bool
	stop    context.CancelFunc
	retime  chan struct{} // the health has changed: begin a new interval
}

// New returns a prober that checks nothing yet.
func New(o Options) *Prober {
	if o.Concurrency == 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	if o.Changed == nil {
		o.Changed = func(Result) {}
	}
	return &Prober{options: o, targets: map[key]*tracked{}, slots: make(chan struct{}, o.Concurrency), execs: make(chan struct{}, execConcurrency)}
}

// Set replaces the targets. Those that stay at their address go on undisturbed with what is known of them, also if their health is
// configured anew. It may be called before Run.
func (p *Prober) Set(targets []Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	want := make(map[key]Target, len(targets))
	for _, t := range targets {
		want[key{t.Service, t.ID}] = t
	}
	for k, have := range p.targets {
		if t, ok := want[k]; !ok || t.Address != have.target.Address || t.VIP != have.target.VIP {
			p.drop(k)
		}
	}
	for k, t := range want {
		have, ok := p.targets[k]
		if !ok {
			have = &tracked{target: t, verdict: p.options.NewVerdict(&t), retime: make(chan struct{}, 1)}
			p.targets[k] = have
			p.start(have)
			continue
		}
		retimed := t.Health.Interval != have.target.Health.Interval
		have.target = t
		if retimed {
			select {
			case have.retime <- struct{}{}:
			default: // it has not taken note of the last change yet
			}
		}
	}
}

func (p *Prober) drop(k key) {
	t := p.targets[k]
	t.gone = true
	if t.stop != nil {
		t.stop()
	}
	delete(p.targets, k)
}

// start begins to check, if the prober runs.
func (p *Prober) start(t *tracked) {
	if p.running == nil || p.running.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(p.running)
	t.stop = stop
	p.group.Go(func() {
		defer stop()
		p.watch(ctx, t)
	})
}

// Run checks until ctx ends, and returns when no check runs any more. It is to be called once.
func (p *Prober) Run(ctx context.Context) {
	p.mu.Lock()
	p.running = ctx
	for _, t := range p.targets {
		p.start(t)
	}
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	p.mu.Unlock() //lint:ignore SA2001 a Set that saw the prober running has started its checks when this lock is free
	p.group.Wait()
}

// Skipped returns how many checks could not be made so far. If that grows, the host's limits are too narrow.
func (p *Prober) Skipped() Skipped {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.skipped
}

// Refused tells, a line for each service, of exec checks that this host does not make.
func (p *Prober) Refused() (lines []string) {
	p.mu.Lock()
	commands := map[string][]string{}
	for _, t := range p.targets {
		if t.target.Health.Check == model.CheckExec {
			commands[t.target.Service] = t.target.Health.Command
		}
	}
	p.mu.Unlock()
	for _, service := range slices.Sorted(maps.Keys(commands)) {
		if _, err := p.options.Exec.program(commands[service]); err != nil {
			lines = append(lines, fmt.Sprintf("service %s is not checked from here: %s", service, legible(err.Error())))
		}
	}
	return lines
}

// All returns what is known, by service and id. Targets of which nothing is known yet are left out.
func (p *Prober) All() []Result {
	p.mu.Lock()
	var all []Result
	for _, t := range p.targets {
		if t.verdict.Known() {
			all = append(all, t.result)
		}
	}
	p.mu.Unlock()
	slices.SortFunc(all, func(a, b Result) int {
		if a.Service != b.Service {
			return strings.Compare(a.Service, b.Service)
		}
		return int(a.ID) - int(b.ID)
	})
	return all
}
