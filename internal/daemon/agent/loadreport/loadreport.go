// Package loadreport reports the load of a host.
package loadreport

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/linux/load"
	"github.com/ballast-lb/ballast/internal/machine/unanswered"
)

// Reporter samples the services of this host. It is safe for concurrent use.
type Reporter struct {
	sampler    *load.Sampler
	services   []load.Service           // that it samples
	period     atomic.Int64             // of reports
	unmeasured atomic.Pointer[[]string] // of what was reported last, and why; nil: nothing was reported yet
	queues     unanswered.Queues
	stuck      atomic.Pointer[[]string] // services whose applications accept nothing; nil: nothing was reported yet
}

// New returns a reporter of a host. CPU is that of a cgroup; empty: of the host.
func New(cgroup string) *Reporter {
	return &Reporter{sampler: load.New(load.Options{Cgroup: cgroup})}
}

// Set takes the services whose connections are counted, and how often they are reported. It is not safe for concurrent use.
func (l *Reporter) Set(services []load.Service, period time.Duration) {
	l.period.Store(int64(period))
	if !reflect.DeepEqual(services, l.services) { // else reports would begin anew with each change of the host's network
		l.services = services
		l.sampler.SetServices(services)
	}
}

// Run reports until ctx ends.
func (l *Reporter) Run(ctx context.Context, send func(*ballastv1.FromNode)) {
	period := func() time.Duration { return time.Duration(l.period.Load()) }
	l.sampler.Run(ctx, period, func(r load.Report) { send(l.message(r)) })
}

// message is what controllers are sent of a report.
func (l *Reporter) message(report load.Report) *ballastv1.FromNode {
	l.unmeasured.Store(&report.Unavailable)
	message := &ballastv1.LoadReport{Cpus: float32(report.CPUs), Unavailable: report.Unavailable}
	if report.HasCPU {
		permille := uint32(report.CPUPermille)
		message.CpuPermille = &permille
	}
	for _, s := range report.Services {
		message.Services = append(message.Services, &ballastv1.ServiceLoad{
			Service: s.Service, Connections: s.Connections, AcceptQueue: s.AcceptQueue, MeanQueue: float32(s.MeanQueue),
		})
	}
	l.observe(time.Now(), report)
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Load{Load: message}}
}

// observe finds applications that hang.
func (l *Reporter) observe(now time.Time, report load.Report) {
	lengths := map[string]uint32{}
	for _, s := range report.Services {
		lengths[s.Service] = s.AcceptQueue
	}
	stuck := l.queues.Look(now, lengths)
	l.stuck.Store(&stuck)
}

// Unmeasured are the sources of load that did not work for the last report, and why.
func (l *Reporter) Unmeasured() []string {
	if unmeasured := l.unmeasured.Load(); unmeasured != nil {
		return *unmeasured
	}
	return nil
}

// Problems names applications that hang.
func (l *Reporter) Problems() (problems []string) {
	if stuck := l.stuck.Load(); stuck != nil {
		for _, service := range *stuck {
			problems = append(problems, fmt.Sprintf("service %s: its accept queue has not become shorter for 10 s or more: the application hangs or is overloaded, "+
				"which a check by tcp does not see: look at it, or restart it", service))
		}
	}
	return problems
}
