// What a load balancer tells of servers' health: what it does, and what its own checks find.
package lb

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
)

// asApplied has statuses that say what this process has found say what the tables do: they follow a little later.
func asApplied(now *dataplane.Snapshot, list []*ballastv1.ServerStatus) []*ballastv1.ServerStatus {
	failing, of := map[uint16]bool{}, ""
	for _, s := range list {
		if s.Service != of {
			failing, of = now.FailingOf(s.Service), s.Service
		}
		fails := failing[uint16(s.Server.Id)]
		switch {
		case s.Removed || s.Health == health.Unchecked || fails == (s.Health == health.Unhealthy):
		case fails:
			s.Health = health.Unhealthy
		default:
			s.Health = health.Unknown
			s.HealthDetail += "; the tables do not follow yet: it gets new connections"
		}
	}
	return list
}

const failsHere = "checks from this load balancer fail, and new connections go there: controllers have not judged it unhealthy"

// seenHere completes what controllers have judged of servers by what checks of this load balancer find, and by since when controllers
// have been silent.
func seenHere(list []*ballastv1.ServerStatus, results []check.Result, silent, now time.Time) {
	type key struct {
		service string
		id      uint32
	}
	own, silence := make(map[key]*check.Result, len(results)), ""
	for i := range results {
		own[key{results[i].Service, uint32(results[i].ID)}] = &results[i]
	}
	if !silent.IsZero() {
		silence = "; no controller has sent anything for " + now.Sub(silent).Truncate(time.Second).String()
	}
	for _, s := range list {
		r := own[key{s.Service, s.Server.Id}]
		switch {
		case s.Removed || s.Health == health.Unchecked:
			continue
		case s.Health == health.Unhealthy && s.HealthDetail == "":
			s.HealthDetail = "by the controllers' word"
		case s.Health == health.Unhealthy:
		case r == nil:
			s.HealthDetail = "controllers have not judged it unhealthy; this load balancer does not check it"
		case r.Healthy:
			s.Health, s.HealthDetail = health.Healthy, judgedAlone
		default:
			s.HealthDetail = failsHere + ": " + r.Detail
		}
		s.HealthDetail += silence
	}
}

// overruled tells of services with servers that get new connections from here though their checks from here fail.
func overruled(now *dataplane.Snapshot, results []check.Result) (problems []string) {
	failing := map[string][]string{} // by service
	for i := range results {
		r := &results[i]
		if r.Healthy {
			continue
		}
		s, found := now.Running.Service(r.Service), now.Unhealthy[r.Service]
		if s == nil || slices.Contains(found.Down, r.ID) || slices.Contains(found.Kept, r.ID) {
			continue
		}
		if at := slices.IndexFunc(s.Servers, func(server model.Server) bool { return server.ID == r.ID }); at >= 0 && s.Servers[at].TakesNew() {
			failing[r.Service] = append(failing[r.Service], fmt.Sprintf("%s (%s)", s.Servers[at].Name, r.Detail))
		}
	}
	for _, service := range slices.Sorted(maps.Keys(failing)) {
		first, more := failing[service][0], ""
		if others := len(failing[service]) - 1; others > 0 {
			more = fmt.Sprintf(" and %d more", others)
		}
		problems = append(problems, fmt.Sprintf("service %s: server %s%s: %s", service, first, more, failsHere))
	}
	return problems
}
