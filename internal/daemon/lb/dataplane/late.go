// Packets that come later than whoever moved a VIP believed: for one that is given up, and for a predecessor that was removed.
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
	lateFor       = 10 * time.Second // that packets for a VIP that is given up are a problem
	orphanFor     = time.Minute      // the same of packets of connections that did not begin here
	removedFor    = 10 * time.Minute // that a predecessor is remembered
	orphansEnough = 3                // fewer of them are a client that was away, or a scan
)

// late notes such packets, by service. Nothing of it outlives the process.
type late struct {
	mutex sync.Mutex
	of    map[string]lateOne
}

type lateOne struct {
	counted lb.Arrivals
	off     bool
	arrived time.Time // a packet for a VIP that is given up

	predecessor []netip.Addr // that the service has, or has had
	removed     time.Time    // zero: it has it
	orphans     uint64       // packets since then of connections that nobody here knows
	lastOrphan  time.Time    // the last one
}

// listen looks at what has come since it did so last.
func (l *late) listen(now *Snapshot, at time.Time, count func(plan.Place) (lb.Arrivals, error)) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	known := l.of
	l.of = map[string]lateOne{}
	off := now.Running.Announcements()
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		one := known[s.Name]
		before, wasOff := one, one.off
		one.off = slices.ContainsFunc(s.VIPs(), func(vip netip.Addr) bool { return off[vip].How == model.VIPOff })
		switch {
		case s.Predecessor.Exists():
			one.predecessor, one.removed, one.orphans, one.lastOrphan = s.Predecessor.Addresses, time.Time{}, 0, time.Time{}
		case one.predecessor != nil && one.removed.IsZero():
			one.removed = at
		case one.predecessor != nil && at.Sub(one.removed) >= removedFor:
			one.predecessor = nil
		}
		if !one.off && one.predecessor == nil {
			continue
		}
		counted, err := count(now.Places[s.Name])
		if err != nil {
			l.of[s.Name] = before
			continue
		}
		if one.off && wasOff && counted.All > one.counted.All {
			one.arrived = at
		}
		if more := counted.Orphans - before.counted.Orphans; !one.removed.IsZero() && counted.Orphans > before.counted.Orphans {
			one.orphans, one.lastOrphan = one.orphans+more, at
		}
		one.counted = counted
		l.of[s.Name] = one
	}
}

// problems are what is to be said of it.
func (l *late) problems(at time.Time) (problems []string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for name, one := range l.of {
		if one.off && !one.arrived.IsZero() && at.Sub(one.arrived) < lateFor {
			problems = append(problems, fmt.Sprintf("service %s: packets still come here, and its vip is given up (announce: off): neighbour caches have this host's address: "+
				"announce it where it is now (`arping -U`), and keep this load balancer, and predecessor, meanwhile", name))
		}
		if one.orphans >= orphansEnough && at.Sub(one.lastOrphan) < orphanFor {
			problems = append(problems, fmt.Sprintf("service %s: %s of connections that did not begin here arrived after its predecessor %v was removed (%s): they break: "+
				"set it again until forwarded_to_predecessor stands still on every load balancer", name, model.Counted(one.orphans, "packet", "packets"), one.predecessor,
				one.removed.UTC().Format(time.RFC3339)))
		}
	}
	slices.Sort(problems)
	return problems
}

// Late are packets that come though whoever moved a VIP believed that none would, in words.
func (t *Tables) Late(at time.Time) []string { return t.late.problems(at) }
