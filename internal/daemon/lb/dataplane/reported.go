// Reported loads, of services whose policy compares them.
package dataplane

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/estimate"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants.
const (
	silentIntervals = 3 // without loads: then connections are counted
	silentAtLeast   = time.Second
)

// reported is what is known of a service's reported loads.
type reported struct {
	term, version uint64
	at            time.Time // of the last loads; before the first: when the service began to wait for them
	any           bool      // loads have come
	reports       estimate.Reports
	begun         begun
	counting      bool              // no loads have come for long: the loads are counted connections
	closed        map[uint16]uint64 // counting: as counted last, by server
}

// comparesReports reports whether this node compares reported loads of the service's servers.
func comparesReports(now *Snapshot, s *model.Service) bool {
	return s.ComparesReports() && !now.SendsToNodes(s)
}

// reportedOf returns what is known of a service's loads. The caller holds the lock.
func (t *Tables) reportedOf(service string, at time.Time) *reported {
	r := t.reported[service]
	if r == nil {
		r = &reported{at: at}
		t.reported[service] = r
	}
	return r
}

// Load takes the loads that servers of a service have reported. Those that are not newer than the last ones are ignored.
func (t *Tables) Load(service string, loads *follow.Loads) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	now, at := t.Now(), time.Now()
	s := now.Running.Service(service)
	if s == nil || !comparesReports(now, s) {
		return
	}
	r := t.reportedOf(service, at)
	if !loads.Newer(r.term, r.version) {
		return
	}
	intervals := at.Sub(r.at).Seconds() / time.Duration(s.Load.Interval).Seconds()
	begun := r.begun.next(now.dispatched(service))
	if !r.any {
		begun, intervals = 0, 0
	}
	next := r.reports.Loads(t.reportedServers(now, s, loads), begun, intervals, loads.Share, loads.Requests)
	place, change := now.Places[service], map[uint16]int32{}
	for i := range s.Servers {
		if index, ok := place.Counters[s.Servers[i].ID]; ok {
			change[s.Servers[i].ID] = next[i] - now.path.OpenConnections(index)
		}
	}
	r.term, r.version, r.at, r.any, r.counting = loads.Term, loads.Version, at, true, false
	t.path.AdjustOpenConnections(place, change)
}

// reportedServers are a service's servers with their loads, in their order. The caller holds the lock.
func (t *Tables) reportedServers(now *Snapshot, s *model.Service, loads *follow.Loads) []estimate.Reported {
	byID := make(map[uint16]float64, len(loads.Servers))
	for _, l := range loads.Servers {
		byID[l.ID] = l.Load
	}
	serving, servers, parts := estimate.Serving(s, now.DownOf(s.Name)), make([]estimate.Reported, len(s.Servers)), t.starts[s.Name].parts
	for i := range s.Servers {
		id := s.Servers[i].ID
		load, known := byID[id]
		servers[i] = estimate.Reported{Weight: parts.Weight(id, s.Servers[i].Weight), Size: s.Servers[i].Weight, TakesNew: serving[id], Known: known, Load: load}
	}
	return servers
}

// silent reports whether loads have not come for long.
func (r *reported) silent(at time.Time, s *model.Service) bool {
	return at.Sub(r.at) > max(silentIntervals*time.Duration(s.Load.Interval), silentAtLeast)
}

// ageReports has services whose loads are not reported any more go by counted connections. The caller holds the lock.
func (t *Tables) ageReports(now *Snapshot, s *model.Service, at time.Time, period time.Duration) {
	r := t.reportedOf(s.Name, at)
	if !r.silent(at, s) {
		return
	}
	place := now.Places[s.Name]
	if r.counting {
		t.path.AdjustOpenConnections(place, r.counted(now, place, period))
		return
	}
	r.counting, r.closed = true, map[uint16]uint64{}
	change := map[uint16]int32{}
	for id, index := range place.Counters {
		if traffic, err := now.path.ServerTraffic(index); err == nil {
			r.closed[id] = traffic.Closed
			change[id] = -now.path.OpenConnections(index)
			if s.Protocol == model.ProtocolTCP { // else nobody sees the ends
				change[id] += estimate.Unit * min(traffic.Open(), estimate.MostOpen)
			}
		}
	}
	t.path.AdjustOpenConnections(place, change)
}

// counted is what to add to loads for connections that have ended since the last call, seen or not.
func (r *reported) counted(now *Snapshot, place plan.Place, period time.Duration) map[uint16]int32 {
	change := map[uint16]int32{}
	for id, index := range place.Counters {
		traffic, err := now.path.ServerTraffic(index)
		if err != nil {
			continue
		}
		open := now.path.OpenConnections(index)
		ended := int32(min(uint64(open), estimate.Unit*(traffic.Closed-min(r.closed[id], traffic.Closed))))
		r.closed[id] = traffic.Closed
		change[id] = -ended + estimate.Decayed(open-ended, period, rand.Float64())
	}
	return change
}

// Unreported are the services whose policy should compare reported loads, and has none.
func (t *Tables) Unreported(at time.Time) (problems []string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	now := t.Now()
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		if r := t.reported[s.Name]; r != nil && comparesReports(now, s) && r.silent(at, s) {
			remedy := "connect this node to a controller, and agents or applications that report"
			if s.Load.Source.CountsTraffic() {
				remedy = "connect this node to a controller"
			}
			problems = append(problems, fmt.Sprintf("service %s: no loads by load.source %s for %v: %s compares the connections counted here: %s",
				s.Name, s.Load.Source, at.Sub(r.at).Truncate(time.Second), s.Dispatch, remedy))
		}
	}
	return problems
}
