// Estimates of open connections, of services whose policy chooses by them.
package dataplane

import (
	"math/rand/v2"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/machine/estimate"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
)

// countLife is how long an estimate that a count has corrected does not decay: counts of services where nothing changes come every 10 s.
const countLife = 25 * time.Second

// counted is what was told last of a service's open connections.
type counted struct {
	term, version uint64
	at            map[uint16]time.Time // by server
	begun         begun
}

// given is what servers of a service began with, and was not released yet.
type given struct {
	open  map[uint16]int32 // by server
	begun begun
}

// begun counts the connections that a service's servers have got together.
type begun struct{ before uint64 }

// next is how many came since the last call.
func (b *begun) next(dispatched uint64) uint64 {
	since := dispatched - b.before
	if dispatched < b.before { // the counters were reset
		since = dispatched
	}
	b.before = dispatched
	return since
}

// Count corrects the estimates of a service by what agents have counted. Counts that are not newer than the last ones are ignored.
func (t *Tables) Count(service string, counts *follow.Counts) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	now := t.Now()
	s := now.Running.Service(service)
	if s == nil || !s.CountsOpen() || now.SendsToNodes(s) {
		return
	}
	last := t.counted[service]
	if last == nil {
		last = &counted{at: map[uint16]time.Time{}}
		t.counted[service] = last
	}
	if !counts.Newer(last.term, last.version) {
		return
	}
	last.term, last.version = counts.Term, counts.Version
	servers := t.estimated(now, s, estimate.Serving(s, now.DownOf(service)))
	byID := make(map[uint16]int, len(servers))
	for i := range s.Servers {
		byID[s.Servers[i].ID] = i
	}
	share := counts.Share
	if share == 0 {
		share = 1
	}
	for _, count := range counts.Servers {
		if i, ok := byID[count.ID]; ok {
			servers[i].Counted, servers[i].Count = true, share*float64(count.Open)
			last.at[count.ID] = time.Now()
		}
	}
	t.adjust(now, s, estimate.Correct(servers, counts.Share == 0, last.begun.next(now.dispatched(service)), rand.Float64))
}

// adjust adds to the estimates of a service's servers, in their order.
func (t *Tables) adjust(now *Snapshot, s *model.Service, by []int32) {
	change := make(map[uint16]int32, len(by))
	for i := range s.Servers {
		change[s.Servers[i].ID] = by[i]
	}
	if place, ok := now.Places[s.Name]; ok {
		t.path.AdjustOpenConnections(place, change)
	}
}

// estimated are a service's servers with what they have open as far as this node can tell, in their order. The caller holds the lock.
func (t *Tables) estimated(now *Snapshot, s *model.Service, takesNew map[uint16]bool) []estimate.Server {
	place, servers, parts := now.Places[s.Name], make([]estimate.Server, len(s.Servers)), t.starts[s.Name].parts
	for i := range s.Servers {
		server := &s.Servers[i]
		servers[i] = estimate.Server{Weight: parts.Weight(server.ID, server.Weight), TakesNew: takesNew[server.ID]}
		if index, ok := place.Counters[server.ID]; ok {
			servers[i].Open = now.path.OpenConnections(index)
		}
	}
	return servers
}

// dispatched is how many connections of a service this node has given to servers.
func (s *Snapshot) dispatched(service string) (n uint64) {
	for _, index := range s.Places[service].Counters {
		if traffic, err := s.path.ServerTraffic(index); err == nil {
			n += traffic.Connections
		}
	}
	return n
}

// beginAgain gives servers that take new connections, and did not before, the mean of those that go on. What a server had open when it
// fell says nothing about it now, and one with nothing open would get every new connection.
func (t *Tables) beginAgain(before *desired.State, now *Snapshot) {
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		was := before.Running.Service(s.Name)
		if was == nil || !s.CountsOpen() || !was.CountsOpen() || now.SendsToNodes(s) {
			continue
		}
		served, serves := estimate.Serving(was, before.DownOf(s.Name)), estimate.Serving(s, now.DownOf(s.Name))
		goOn, begin := map[uint16]bool{}, map[uint16]bool{}
		for id := range serves {
			goOn[id], begin[id] = served[id], !served[id]
		}
		servers, by := t.estimated(now, s, goOn), make([]int32, len(s.Servers))
		for i := range servers {
			id := s.Servers[i].ID
			if !begin[id] {
				continue
			}
			mean, _ := estimate.Mean(servers, i)
			open := int32(mean + rand.Float64())
			by[i] = open - servers[i].Open
			g := t.given[s.Name]
			if g == nil {
				g = &given{open: map[uint16]int32{}}
				g.begun.next(now.dispatched(s.Name))
				t.given[s.Name] = g
			}
			g.open[id] = open
		}
		t.adjust(now, s, by)
	}
}

// release takes back step by step what servers began with.
func (t *Tables) release(now *Snapshot, s *model.Service) {
	g := t.given[s.Name]
	if g == nil {
		return
	}
	takesNew := estimate.Serving(s, now.DownOf(s.Name))
	servers, open := t.estimated(now, s, takesNew), make([]int32, len(s.Servers))
	for i := range s.Servers {
		if id := s.Servers[i].ID; takesNew[id] {
			open[i] = g.open[id]
		}
	}
	by := estimate.Release(servers, open, g.begun.next(now.dispatched(s.Name)), rand.Float64)
	left := map[uint16]int32{}
	for i := range by {
		if rest := open[i] + by[i]; open[i] > 0 && rest > 0 && servers[i].Open > 0 {
			left[s.Servers[i].ID] = rest
		}
	}
	if g.open = left; len(left) == 0 {
		delete(t.given, s.Name)
	}
	t.adjust(now, s, by)
}

// ageEstimates releases what servers began with, and lets the estimates decay that no agent corrects.
func (t *Tables) ageEstimates(at time.Time, period time.Duration) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	now := t.Now()
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		if comparesReports(now, s) {
			t.ageReports(now, s, at, period)
		} else {
			delete(t.reported, s.Name)
		}
		if !s.CountsOpen() || now.SendsToNodes(s) {
			delete(t.counted, s.Name)
			delete(t.given, s.Name)
			continue
		}
		t.release(now, s)
		place, change := now.Places[s.Name], make(map[uint16]int32, len(s.Servers))
		for id, index := range place.Counters { // of removed servers, too
			if last := t.counted[s.Name]; last != nil && at.Sub(last.at[id]) < countLife {
				continue
			}
			change[id] = estimate.Decayed(now.path.OpenConnections(index), period, rand.Float64())
		}
		if len(change) > 0 {
			t.path.AdjustOpenConnections(place, change)
		}
	}
}
