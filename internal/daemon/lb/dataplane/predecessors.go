// Predecessors that packets go to, and do not reach.
package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants.
const (
	loopMemory = time.Minute // after packets came back from a predecessor
	loopsOne   = 100         // of so many packets for a predecessor that come back are a loop: a single one without hops anybody sends
)

// returning notes whether what goes to predecessors comes back, by service.
type returning struct {
	mutex sync.Mutex
	of    map[string]returned
}

type returned struct {
	lb.Succession
	last time.Time // zero: nothing came back since this process began
}

// listen looks at what was counted since it did so last.
func (r *returning) listen(now *Snapshot, at time.Time, count func(plan.Place) (lb.Succession, error)) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	known := r.of
	r.of = map[string]returned{}
	for s := range now.Succeeding() {
		counted, err := count(now.Places[s.Name])
		if err != nil {
			continue
		}
		before, looked := known[s.Name]
		back, gone := counted.Returned-before.Returned, counted.Sent-before.Sent
		if looked && counted.Returned > before.Returned && back*loopsOne >= gone {
			before.last = at
		}
		r.of[s.Name] = returned{counted, before.last}
	}
}

func (r *returning) loops(service string, at time.Time) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	last := r.of[service].last
	return !last.IsZero() && at.Sub(last) < loopMemory
}

// LostPredecessors are the predecessors that packets go to, or may, and do not reach, in words.
func (t *Tables) LostPredecessors(at time.Time) (problems []string) {
	now := t.Now()
	for s := range now.Succeeding() {
		for address, why := range now.LostPredecessors(s) {
			problems = append(problems, fmt.Sprintf("service %s: predecessor %s: %s: what goes there is lost", s.Name, address, why))
		}
		if t.returning.loops(s.Name, at) {
			problems = append(problems, fmt.Sprintf("service %s: packets for its predecessor come back (dropped_predecessor_loop): "+
				"routes there lead here, or it names this load balancer as its own: have it take the VIP", s.Name))
		}
	}
	return problems
}

// Succeeds reports whether all new connections of a service go to its predecessor, and one of its addresses is reached.
func (s *Snapshot) Succeeds(of *model.Service) bool {
	return of.Predecessor.Share.Permille() == 0 && slices.ContainsFunc(of.Predecessor.Addresses, func(address netip.Addr) bool {
		_, known := s.Paths[address]
		return known && s.whyLost(of, address) == ""
	})
}

// LostPredecessors tells why packets for predecessors of a service do not reach them, by their address, as far as there are such packets: new
// connections by the share, or any within the last minute.
func (s *Snapshot) LostPredecessors(of *model.Service) map[netip.Addr]string {
	lost := map[netip.Addr]string{}
	for _, address := range of.Predecessor.Addresses {
		if why := s.whyLost(of, address); why != "" {
			lost[address] = why
		}
	}
	if len(lost) == 0 || of.Predecessor.Share.Permille() < model.ShareAll {
		return lost
	}
	if count, err := s.PredecessorConnections(s.Places[of.Name]); err == nil && count == 0 {
		return nil
	}
	return lost
}

// AllPredecessorConnections are PredecessorConnections by service.
func (s *Snapshot) AllPredecessorConnections() map[string]uint64 {
	all := map[string]uint64{}
	for service := range s.Succeeding() {
		place, served := s.Places[service.Name]
		if !served {
			continue
		}
		count, err := s.PredecessorConnections(place)
		if err != nil {
			return all
		}
		all[service.Name] = uint64(count)
	}
	return all
}

// whyLost is empty where the kernel knows a way to the predecessor that its packets can go.
func (s *Snapshot) whyLost(of *model.Service, address netip.Addr) string {
	path, known := s.Paths[address]
	switch why := s.Pathless[address]; {
	case why != "":
		return why
	case path.Here:
		return "it is this host"
	case known && !path.OnLink && of.Predecessor.Forward == model.ForwardL2:
		return "it is behind a router, which sends packets for the VIP by its routes: predecessor.forward l2 needs it on a link of this host; use ipip or gue"
	}
	return ""
}
