// Package load measures how busy a server is, for its agent to report (Spotlight V-B, Cheetah IV-B): CPU in use, and for each
// service the open connections and those that wait to be accepted, now and on average since the report before.
//
// # What is counted
//
// Connections are TCP sockets of the namespace whose local address and port are those of the service, as the kernel lists them by
// sock_diag, IPv4 clients of IPv6 sockets included. One counts from the end of its handshake until the server has closed it and the
// client has acknowledged everything. Those that no process has accepted yet are counted apart: they are what the accept queue of a
// listening socket holds. The queue's own length would be that of all addresses that a wildcard socket listens on; their number is
// that of one service. A connection of several MPTCP subflows counts once for each.
//
// The CPU is that of the whole host, or of one control group: of cgroup v2, or of v1's cpu and cpuacct controllers. There the
// quotas of the group and of those around it say how much there is to use; time stolen by a hypervisor counts as in use.
//
// # When
//
// A report goes out at a random time in each interval, so that servers never report in step and nothing that happens at fixed
// times is always missed or always hit (Spotlight V-C). Samples for the mean are taken in between, as many as the sampler can
// afford: measuring takes at most Options.MostCPU of one CPU. They become fewer while none differs from the one before, down to that
// of each report; the mean is weighted by the time between them. Where nobody follows the load of any service each report takes one
// sample, and CPU time is that since the report before; the first report after somebody does is of what was measured since. When even
// one sample in each interval would take more, reports become less frequent and say so.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/stagger"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	defaultRate    = 100.0 // samples per second
	defaultMostCPU = 0.02
	shortest       = time.Duration(model.MinLoadInterval)
	longest        = time.Duration(model.MaxLoadInterval)
	listenEvery    = time.Second // between looks at who listens
	never          = time.Hour   // longer than any interval
	soon           = 250 * time.Millisecond
	calm           = 16 // samples without a difference, until half as many are taken
	calmest        = 16 // times that the rate is halved, at most
)

// Options configure a Sampler. The zero value measures the whole host.
type Options struct {
	Cgroup  string  // directory of the control group whose CPU counts, such as /sys/fs/cgroup/web.slice; empty: the host
	Rate    float64 // samples per second that are wanted, for the mean; 0: 100
	MostCPU float64 // of one CPU that measuring may take; 0: 0.02
}

// Service is what connections are counted of.
type Service struct {
	Name     string
	Protocol model.Protocol // 0: TCP. Others have no connections
	// VIP is the address that packets of the service have when they reach the sockets: with forward nat the server's own.
	VIP        netip.Addr
	MoreVIPs   []netip.Addr
	Ports      []uint16
	PortRanges []model.PortRange
	Followed   bool // a policy goes by its load: samples are taken between reports
	// ByConnections: the load that a policy goes by is that of connections. Where there can be none, only then is that a fault.
	ByConnections bool
	// Translated: the host does not have an address of it. Its connections, if any, are of sockets that are not found by it: they are not counted.
	Translated bool
}

// counted: its connections are.
func (s *Service) counted() bool {
	return (s.Protocol == 0 || s.Protocol == model.ProtocolTCP) && !s.Translated
}

// ServiceLoad is how busy one service is on this server.
type ServiceLoad struct {
	Service     string
	Connections uint32  // open and accepted, now
	AcceptQueue uint32  // waiting to be accepted, now
	MeanQueue   float64 // of Connections + AcceptQueue, since the report before
}

// Report is what was measured since the report before.
type Report struct {
	HasCPU      bool
	CPUPermille uint16  // of CPUs, in use
	CPUs        float64 // of the host, or the part of them that the control group may use
	Services    []ServiceLoad
	Samples     int      // that MeanQueue is of
	Unavailable []string // what is not measured as it was asked for, and why
}

// Sampler measures. Its methods may be used by several goroutines; Run must run once.
type Sampler struct {
	options Options
	sockets *sockets
	failed  error // why there are no sockets
	cpu     cpuMeter
	wanted  atomic.Pointer[targets]
	changed chan struct{}
}

// New returns a sampler of the network namespace that the calling thread is in. What does not work here, reports will say.
func New(o Options) *Sampler {
	if o.Rate <= 0 {
		o.Rate = defaultRate
	}
	if o.MostCPU <= 0 {
		o.MostCPU = defaultMostCPU
	}
	s := &Sampler{options: o, cpu: cpuMeter{cgroup: o.Cgroup}, changed: make(chan struct{}, 1)}
	s.sockets, s.failed = openSockets()
	s.wanted.Store(newTargets(nil))
	return s
}

// SetServices says what connections are to be counted of; it replaces the services before, and the interval begins anew. The first report
// comes soon, however long the interval is.
func (s *Sampler) SetServices(services []Service) {
	s.wanted.Store(newTargets(services))
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run measures and calls report in each interval until ctx ends. interval is asked before each; it is kept within 10 ms and 10 s.
// report must not block. Afterwards the sampler is of no use any more.
func (s *Sampler) Run(ctx context.Context, interval func() time.Duration, report func(Report)) {
	// The CPU time that measuring takes is that of this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer s.sockets.close()
	every := func() time.Duration { return min(max(interval(), shortest), longest) }
	m := measurement{sampler: s, used: threadTime()}
	m.begin(s.wanted.Load())
	m.take(time.Now())
	m.cost = 0 // the first is dearer than those that follow
	m.take(time.Now())
	wanted := every()
	plan := m.first(wanted)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		sample := now.Add(m.gap(m.affordable(wanted), rand.Float64()))
		due := !plan.At.After(sample)
		if due {
			sample = plan.At
		}
		timer.Reset(sample.Sub(now))
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			m.begin(s.wanted.Load())
			m.take(time.Now())
			wanted = every()
			plan = m.first(wanted)
			continue
		case <-timer.C:
		}
		m.take(time.Now())
		if due {
			report(m.report(wanted))
			wanted = every()
			plan.Next(time.Now(), m.affordable(wanted), rand.Float64())
		}
	}
}

// A measurement is what was sampled since the last report, and what sampling costs.
type measurement struct {
	sampler *Sampler
	targets *targets
	counts  []count   // now, by service
	before  []count   // as in the sample before
	sums    []float64 // of connections, open or waiting, times seconds
	over    float64   // seconds that sums are of
	at      time.Time // of the last sample
	equal   int       // samples in a row that did not differ
	samples int
	problem error         // of the last sample
	cost    time.Duration // of CPU time, of one sample on average
	used    time.Duration // CPU time of the thread, at the last sample

	unheard  []string // services that nobody listens for
	listened time.Time
}

// begin forgets what was sampled. CPU time that was read too seldom says nothing about the load that a policy goes by from now on.
func (m *measurement) begin(t *targets) {
	if t.followed && m.targets != nil && !m.targets.followed {
		m.sampler.cpu.forget()
	}
	m.targets, m.counts, m.sums, m.samples = t, make([]count, len(t.services)), make([]float64, len(t.services)), 0
	m.before, m.over, m.at, m.equal = make([]count, len(t.services)), 0, time.Time{}, 0
	m.listened = time.Time{}
}

// first plans the reports of other services: the first one soon, but when there is a CPU time to tell.
func (m *measurement) first(wanted time.Duration) *stagger.Schedule {
	begin := time.Now()
	if m.sampler.cpu.early() {
		begin = begin.Add(cpuWindow)
	}
	return stagger.New(begin, m.affordable(min(wanted, soon)), rand.Float64())
}

// take takes one sample.
func (m *measurement) take(now time.Time) {
	s := m.sampler
	s.cpu.read(now)
	if m.problem = s.failed; m.problem == nil && m.targets.any() {
		m.problem = s.sockets.count(m.targets, m.counts)
	}
	if m.problem == nil {
		m.add(now)
		if now.Sub(m.listened) > listenEvery && m.targets.any() {
			m.unheard, m.problem = s.sockets.unheard(m.targets)
			m.listened = now
		}
	}
	m.account()
}

// add weighs a sample by the time since the one before, in which the connections were as many as the mean of both.
func (m *measurement) add(now time.Time) {
	if m.at.IsZero() {
		copy(m.before, m.counts)
		m.at = now
	}
	passed := now.Sub(m.at).Seconds()
	for i, c := range m.counts {
		m.sums[i] += (c.total() + m.before[i].total()) / 2 * passed
	}
	m.over += passed
	m.equal++
	if !slices.Equal(m.counts, m.before) {
		m.equal = 0
	}
	copy(m.before, m.counts)
	m.at = now
	m.samples++
}

// mean is that of a service since the last report.
func (m *measurement) mean(i int) float64 {
	if m.over == 0 {
		return m.counts[i].total()
	}
	return m.sums[i] / m.over
}

// account takes note of what the last sample cost. Waking up and reporting is part of it: all that this thread did since the one
// before. One that is much dearer than the rest, for whatever reason, counts as four.
func (m *measurement) account() {
	used := threadTime()
	cost := used - m.used
	if m.cost == 0 {
		m.cost = cost
	}
	m.cost += (min(cost, 4*m.cost) - m.cost) / 8
	m.used = used
}

// gap returns how long to wait until the next sample between reports: half to one and a half times the mean. Each report takes a
// sample of its own.
func (m *measurement) gap(interval time.Duration, random float64) time.Duration {
	mean := max(time.Duration(float64(time.Second)/m.sampler.options.Rate), m.apart())
	mean <<= min(m.equal/calm, calmest)
	if interval <= mean || !m.targets.followed {
		return never
	}
	between := 1 / (1/float64(mean) - 1/float64(interval))
	return time.Duration(min((0.5+random)*between, float64(never)))
}

// apart is how far apart samples have to be to cost no more than they may.
func (m *measurement) apart() time.Duration {
	return time.Duration(float64(m.cost) / m.sampler.options.MostCPU)
}

// affordable returns the interval that can be kept: a report takes one sample at least.
func (m *measurement) affordable(wanted time.Duration) time.Duration { return max(wanted, m.apart()) }

// report makes a report of the samples since the last one.
func (m *measurement) report(wanted time.Duration) Report {
	s := m.sampler
	r := Report{Samples: m.samples}
	var err error
	if r.CPUPermille, r.CPUs, err = s.cpu.permille(); err != nil && !errors.Is(err, errEarly) {
		r.Unavailable = append(r.Unavailable, fmt.Sprintf("cpu: %v", err))
	}
	r.HasCPU = err == nil
	if m.problem != nil {
		r.Unavailable = append(r.Unavailable, fmt.Sprintf("connections: %v", m.problem))
	}
	for i, service := range m.targets.services {
		switch {
		case service.Translated && service.ByConnections:
			r.Unavailable = append(r.Unavailable, fmt.Sprintf("connections of %s: this host does not have its address, so they are not counted: use load: {source: cpu} or endpoint", service.Name))
		case !service.counted() && service.ByConnections:
			r.Unavailable = append(r.Unavailable, fmt.Sprintf("connections of %s: %s has none, so its policy cannot go by them: use load: {source: cpu} or endpoint", service.Name, service.Protocol))
		case !service.counted():
		case m.samples > 0 && m.problem == nil:
			c := m.counts[i]
			r.Services = append(r.Services, ServiceLoad{service.Name, c.accepted, c.waiting, m.mean(i)})
		}
	}
	r.Unavailable = append(r.Unavailable, m.unheard...)
	if kept := m.affordable(wanted); kept > wanted+wanted/10 {
		r.Unavailable = append(r.Unavailable, fmt.Sprintf("a report every %s: one sample takes %s of CPU time, so there is one every %s, to take at most %v %% of a CPU",
			wanted, m.cost.Round(time.Microsecond), kept.Round(time.Millisecond), 100*s.options.MostCPU))
	}
	clear(m.sums)
	m.samples, m.over = 0, 0
	return r
}

// threadTime is the CPU time that this thread has used.
func threadTime() time.Duration {
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used); err != nil {
		panic(err) // the clock exists since Linux 2.6.12
	}
	return time.Duration(used.Nano())
}
