// Reports of the host's load.
package agent

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/linux/load"
	"github.com/ballast-lb/ballast/internal/machine/unanswered"
)

// loadReporter samples the services of this host. It is safe for concurrent use.
type loadReporter struct {
	*load.Sampler
	period     atomic.Int64             // of reports
	unmeasured atomic.Pointer[[]string] // of what was reported last, and why; nil: nothing was reported yet
	queues     unanswered.Queues
	stuck      atomic.Pointer[[]string] // services whose applications accept nothing; nil: nothing was reported yet
}

func (l *loadReporter) interval() time.Duration { return time.Duration(l.period.Load()) }

// message is what controllers hear of a report.
func (l *loadReporter) message(report load.Report) *ballastv1.FromNode {
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
	l.look(time.Now(), report)
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Load{Load: message}}
}

// look finds applications that hang.
func (l *loadReporter) look(now time.Time, report load.Report) {
	lengths := map[string]uint32{}
	for _, s := range report.Services {
		lengths[s.Service] = s.AcceptQueue
	}
	stuck := l.queues.Look(now, lengths)
	l.stuck.Store(&stuck)
}

func (l *loadReporter) problems() (problems []string) {
	if stuck := l.stuck.Load(); stuck != nil {
		for _, service := range *stuck {
			problems = append(problems, fmt.Sprintf("service %s: its accept queue has not become shorter for 10 s or more: the application hangs or is overloaded, "+
				"which a check by tcp does not see: look at it, or restart it", service))
		}
	}
	return problems
}
