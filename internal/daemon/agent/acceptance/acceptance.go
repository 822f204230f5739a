// Package acceptance keeps the loads by which a host accepts connections of services with dispatch choices, or passes them on: what the data
// path cannot know itself.
package acceptance

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/linux/load"
	"github.com/ballast-lb/ballast/internal/linux/poll"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants.
const (
	strainPeriod = 100 * time.Millisecond
	sweepPeriod  = 5 * time.Second        // between counts of connections that correct what the data path counts
	sweepAlone   = 250 * time.Millisecond // the same where it does not count
	silenceMax   = 3                      // polls without an answer, until an application counts as overloaded
)

// Loads are those of the services of this host. It is safe for concurrent use.
type Loads struct {
	path    *server.Server
	log     *slog.Logger
	strain  *load.Strain
	counter *load.Counter // nil: see uncounted
	poller  *poll.Poller
	changed chan struct{} // choices

	mutex     sync.Mutex
	choices   []plan.AgentChoice
	counted   []plan.AgentChoice // those by connections, in the counter's order
	swept     time.Time          // zero: the counts are not right yet
	alone     bool               // the data path does not count
	uncounted string             // why connections are not, empty: they are
	strainBad string             // likewise
	silent    map[string]int     // by service: polls since the last answer
}

// New returns the loads of a host without services. CPU is that of a cgroup; empty: of the host.
func New(path *server.Server, cgroup string, log *slog.Logger) *Loads {
	a := &Loads{path: path, log: log, strain: load.NewStrain(cgroup), silent: map[string]int{}, changed: make(chan struct{}, 1)}
	var err error
	if a.counter, err = load.NewCounter(); err != nil {
		a.uncounted = err.Error()
	}
	a.poller = poll.New(poll.Options{Report: a.polled})
	return a
}

// Set takes the services, and where their connections are. The caller may not run Set or another change of the data path meanwhile.
func (a *Loads) Set(choices []plan.AgentChoice) {
	var targets []poll.Target
	var sockets []load.Service
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.choices, a.counted, a.swept = slices.Clone(choices), nil, time.Time{}
	for _, c := range choices {
		switch c.Service.Choices.Accept.Load {
		case model.AcceptByConnections:
			a.counted = append(a.counted, c)
			sockets = append(sockets, load.Service{Name: c.Service.Name, VIP: c.Service.VIP, MoreVIPs: c.Service.MoreVIPs, Ports: c.Service.Ports, PortRanges: c.Service.PortRanges})
		case model.AcceptByEndpoint:
			url, err := poll.URL(c.Service.Load.Endpoint, c.Server.Address)
			if err != nil {
				a.log.Error("the application is not asked for its load", "service", c.Service.Name, "error", err)
				continue
			}
			targets = append(targets, poll.Target{Service: c.Service.Name, ID: c.Server.ID, URL: url, Interval: time.Duration(c.Service.Load.Interval)})
		}
	}
	a.poller.Set(targets)
	if a.counter != nil {
		a.counter.SetServices(sockets)
	}
	a.countLive()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// countLive has the data path count connections, where that is of use and possible. The caller holds the lock.
func (a *Loads) countLive() {
	var err error
	if len(a.counted) > 0 {
		err = a.path.CountLive()
	} else if err := a.path.IgnoreLive(); err != nil {
		a.log.Warn("connections are still counted, though nothing needs it", "error", err)
	}
	if alone := err != nil; alone != a.alone {
		if a.alone = alone; alone {
			a.log.Warn("the kernel does not report each connection: they are counted now and then", "every", sweepAlone, "error", err)
		}
	}
}

// Run keeps the loads until ctx ends.
func (a *Loads) Run(ctx context.Context) {
	var polling sync.WaitGroup
	polling.Go(func() { a.poller.Run(ctx) })
	a.stepWhereWanted(ctx)
	polling.Wait()
	if a.counter != nil {
		a.counter.Close()
	}
}

// stepWhereWanted steps until ctx ends, while there are choices.
func (a *Loads) stepWhereWanted(ctx context.Context) {
	ticker := time.NewTicker(strainPeriod)
	defer ticker.Stop()
	ticker.Stop() // until there are some
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if !a.step(now) {
				ticker.Stop()
			}
		case <-a.changed:
			ticker.Reset(strainPeriod)
		}
	}
}

// step reports whether there is anything to do.
func (a *Loads) step(now time.Time) (wanted bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if len(a.choices) == 0 {
		return false
	}
	a.strainBad = a.measure(now)
	period := sweepPeriod
	if a.alone {
		period = sweepAlone
	}
	if a.counter != nil && len(a.counted) > 0 && now.Sub(a.swept) >= period {
		a.uncounted = ""
		if err := a.sweep(); err != nil {
			a.uncounted = err.Error()
		}
		a.swept = now
	}
	return true
}

// measure sets the load of the services by CPU.
func (a *Loads) measure(now time.Time) (problem string) {
	if !slices.ContainsFunc(a.choices, byCPU) {
		return ""
	}
	percent, known, err := a.strain.Percent(now)
	for _, c := range a.choices {
		if err == nil && known && byCPU(c) {
			err = a.path.SetLoad(c.Acceptance, percent)
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func byCPU(c plan.AgentChoice) bool { return c.Service.Choices.Accept.Load == model.AcceptByCPU }

// sweep corrects what is counted of connections.
func (a *Loads) sweep() error {
	before := make([]int64, len(a.counted))
	var err error
	for i, c := range a.counted {
		if before[i], err = a.path.Live(c.Acceptance); err != nil {
			return err
		}
	}
	found, err := a.counter.Count()
	if err != nil {
		return err
	}
	for i, c := range a.counted {
		after, err := a.path.Live(c.Acceptance)
		if err != nil {
			return err
		}
		word, err := a.path.Load(c.Acceptance)
		if err != nil {
			return err
		}
		if right := correction(before[i], after, int32(word), found[i]); right != int32(word) {
			if err := a.path.SetLoad(c.Acceptance, uint32(right)); err != nil {
				return err
			}
		}
	}
	return nil
}

// correction is what has to be added to the data path's count of connections, which was before and after so many others had been found. One
// that may be right stays.
func correction(before, after int64, present int32, found uint32) int32 {
	low, high := min(before, after)+int64(present), max(before, after)+int64(present)
	if n := int64(found); n >= low && n <= high {
		return present
	}
	return int32(min(max(int64(found)-after, math.MinInt32), math.MaxInt32))
}

// polled takes what an application reports. One that reports nothing has no room for more: others are asked first.
func (a *Loads) polled(r poll.Result) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	at := slices.IndexFunc(a.choices, func(c plan.AgentChoice) bool { return c.Service.Name == r.Service && c.Server.ID == r.ID })
	if at < 0 || a.choices[at].Service.Choices.Accept.Load != model.AcceptByEndpoint {
		return
	}
	busy := uint32(math.MaxUint32)
	if r.Err == nil {
		delete(a.silent, r.Service)
		busy = loadOf(&r.Status)
	} else if a.silent[r.Service]++; a.silent[r.Service] < silenceMax {
		return
	} else if a.silent[r.Service] == silenceMax {
		a.log.Warn("an application does not report its load: connections go to others that may take them", "service", r.Service, "error", r.Err)
	}
	if err := a.path.SetLoad(a.choices[at].Acceptance, busy); err != nil {
		a.log.Error("load not updated", "service", r.Service, "error", err)
	}
}

// loadOf is an application's load: requests, or percent of CPU where it does not know them.
func loadOf(s *poll.Status) uint32 {
	if s.HasOutstanding {
		return uint32(min(math.Ceil(s.Outstanding), math.MaxUint32-1))
	}
	return uint32(100*s.CPU + 0.5)
}

var (
	loadMetric  = prometheus.NewDesc("ballast_agent_acceptance_load", "This server's load, by which it accepts connections of a service with dispatch choices (not with accept by backlog).", []string{"service"}, nil)
	limitMetric = prometheus.NewDesc("ballast_agent_acceptance_limit", "Load above which the server passes connections on to another candidate.", []string{"service"}, nil)
)

// Collect exports the loads, but for the accept queue's, which only packets see, and the limits.
func (a *Loads) Collect(out chan<- prometheus.Metric) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for _, c := range a.choices {
		accept := &c.Service.Choices.Accept
		if accept.Load != model.AcceptByBacklog {
			word, err := a.path.Load(c.Acceptance)
			busy := float64(word)
			if accept.Load == model.AcceptByConnections && err == nil {
				var live int64
				live, err = a.path.Live(c.Acceptance)
				busy = max(float64(live)+float64(int32(word)), 0)
			}
			export(out, loadMetric, c.Service.Name, busy, err)
		}
		limit, err := accept.Threshold, error(nil)
		if accept.Policy == model.AcceptDynamic {
			limit, err = a.path.Limit(c.Acceptance)
		}
		export(out, limitMetric, c.Service.Name, float64(limit), err)
	}
}

func export(out chan<- prometheus.Metric, what *prometheus.Desc, service string, value float64, err error) {
	if err != nil {
		out <- prometheus.NewInvalidMetric(what, err)
		return
	}
	out <- prometheus.MustNewConstMetric(what, prometheus.GaugeValue, value, service)
}

// Problems are what is not measured as it was asked for.
func (a *Loads) Problems() (problems []string) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for _, c := range a.choices {
		name := c.Service.Name
		switch by := c.Service.Choices.Accept.Load; {
		case by == model.AcceptByConnections && a.uncounted != "":
			problems = append(problems, fmt.Sprintf("connections of %s are not counted: %s", name, a.uncounted))
		case by == model.AcceptByConnections && a.alone:
			problems = append(problems, fmt.Sprintf("connections of %s are counted every %s only: the kernel does not report each (CONFIG_BPF_EVENTS)", name, sweepAlone))
		case by == model.AcceptByCPU && a.strainBad != "":
			problems = append(problems, fmt.Sprintf("load of %s: %s", name, a.strainBad))
		case by == model.AcceptByEndpoint && a.silent[name] >= silenceMax:
			problems = append(problems, fmt.Sprintf("load of %s: its application does not answer: its connections go to others that may take them", name))
		}
	}
	return problems
}
