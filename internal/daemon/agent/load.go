// Reports of the host's load.
package agent

import (
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/linux/load"
)

// loadReporter samples the services of this host. It is safe for concurrent use.
type loadReporter struct {
	*load.Sampler
	period     atomic.Int64             // of reports
	unmeasured atomic.Pointer[[]string] // of what was reported last, and why; nil: nothing was reported yet
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
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Load{Load: message}}
}
