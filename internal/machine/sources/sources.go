// Package sources decides whose tunnels a server takes, by what controllers tell of the load balancers. It is pure: time is an argument,
// nothing here does I/O.
package sources

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Settle is how long lists have to be good before others' tunnels are dropped: load balancers join again meanwhile.
const Settle = 10 * time.Minute

// Implementation constants.
const (
	settleDoubted = 24 * time.Hour // the same while foreign tunnels arrive: they may be load balancers that are yet to join
	patience      = time.Minute    // without good lists, until tunnels of anybody are taken again
	life          = 24 * time.Hour // of good lists without an address, until it is forgotten
)

// List is what one controller tells of load balancers, each time all of it.
type List struct {
	Controller string       // its name
	Alive      []string     // the controllers that live, itself included; empty: it does not know
	Addresses  []netip.Addr // of load balancers
	Silent     []string     // load balancers whose addresses it does not know
}

// Sources are whom a server takes tunnels from. Addresses are added at once. They are forgotten late, and those of others are dropped only
// while the lists must be complete: whoever is in doubt takes a tunnel.
type Sources struct {
	Limited bool          // tunnels of others are to be dropped
	Settle  time.Duration // zero: as the constant

	lists    map[string]List          // by stream
	listed   map[netip.Addr]time.Time // when an address was last listed, or could have been
	good     bool                     // the lists are
	since    time.Time                // when they became what they are, good or not
	foreign  time.Time                // of the last foreign tunnel
	known    time.Time                // when one of an address that is known came last
	overflow time.Time                // when addresses had to go because no more fit, zero: not lately
}

// Restore adds what was known in an earlier life.
func (s *Sources) Restore(addresses []netip.Addr, now time.Time) {
	if s.listed == nil {
		s.listed = map[netip.Addr]time.Time{}
	}
	for _, address := range addresses {
		s.listed[address] = now
	}
	s.bound(now)
}

// bound forgets what does not fit, first what no list has. Whoever was forgotten may be a load balancer.
func (s *Sources) bound(now time.Time) {
	over := len(s.listed) - model.MaxTunnelSources
	if over <= 0 {
		return
	}
	listed := map[netip.Addr]bool{}
	for _, list := range s.lists {
		for _, address := range list.Addresses {
			listed[address] = true
		}
	}
	addresses := slices.SortedFunc(maps.Keys(s.listed), func(a, b netip.Addr) int {
		if listed[a] != listed[b] {
			if listed[a] {
				return 1
			}
			return -1
		}
		return cmp.Or(s.listed[a].Compare(s.listed[b]), a.Compare(b))
	})
	for _, address := range addresses[:over] {
		delete(s.listed, address)
	}
	s.overflow = now
}

// Update takes a controller's list in place of the one before on the same stream.
func (s *Sources) Update(stream string, list List, now time.Time) {
	if s.lists == nil {
		s.lists = map[string]List{}
	}
	s.lists[stream] = list
	s.Restore(list.Addresses, now)
	s.Step(now)
}

// Leave takes note of the end of a stream. What was told on it stays known.
func (s *Sources) Leave(stream string, now time.Time) {
	delete(s.lists, stream)
	s.Step(now)
}

// Observe takes note of tunnels that came lately, from addresses that are known and from others.
func (s *Sources) Observe(known, foreign bool, now time.Time) {
	if known {
		s.known = now
	}
	if foreign {
		s.foreign = now
	}
}

// Step decides by what is known now. It wants to be called every second or so.
func (s *Sources) Step(now time.Time) {
	if now.Sub(s.overflow) > life {
		s.overflow = time.Time{}
	}
	if good := s.Doubt() == ""; good != s.good || s.since.IsZero() {
		s.good, s.since = good, now
	}
	if !s.good {
		for address := range s.listed { // nobody could have told it
			s.listed[address] = now
		}
		s.Limited = s.Limited && now.Sub(s.since) < patience
		return
	}
	for _, list := range s.lists {
		s.Restore(list.Addresses, now)
	}
	maps.DeleteFunc(s.listed, func(_ netip.Addr, last time.Time) bool { return now.Sub(last) > life })
	s.Limited = s.Limited || s.settled(now)
}

// settled reports whether good lists have been good for long enough, and are those of whoever sends tunnels here: their addresses may be
// translated on the way.
func (s *Sources) settled(now time.Time) bool {
	settle, good := s.settle(), now.Sub(s.since)
	return good >= settle && s.Proven() && (now.Sub(s.foreign) >= settle || good >= settleDoubted)
}

func (s *Sources) settle() time.Duration {
	if s.Settle != 0 {
		return s.Settle
	}
	return Settle
}

// Proven reports whether a tunnel of an address that is known has come since the lists became good.
func (s *Sources) Proven() bool { return s.known.After(s.since) }

// Addresses returns those that are known, ascending.
func (s *Sources) Addresses() []netip.Addr {
	return slices.SortedFunc(maps.Keys(s.listed), netip.Addr.Compare)
}

// Until tells when tunnels of others will be dropped if the lists stay good: if no stranger's tunnel comes any more, and if they go on to come.
func (s *Sources) Until() (earliest, latest time.Time) {
	latest = s.since.Add(max(s.settle(), settleDoubted))
	earliest = s.since.Add(s.settle())
	if silent := s.foreign.Add(s.settle()); silent.After(earliest) {
		earliest = silent
	}
	if earliest.After(latest) {
		earliest = latest
	}
	return earliest, latest
}

// Doubt says why the lists may lack a load balancer, and what to do; empty: they cannot, as far as can be known.
func (s *Sources) Doubt() string {
	connected, alive := map[string]bool{}, map[string]bool{}
	var silent []string
	for _, list := range s.lists {
		connected[list.Controller] = true
		silent = append(silent, list.Silent...)
		for _, name := range list.Alive {
			alive[name] = true
		}
	}
	var away []string
	for name := range alive {
		if !connected[name] {
			away = append(away, name)
		}
	}
	slices.Sort(away)
	slices.Sort(silent)
	switch {
	case len(alive) == 0:
		return "no controller lists the load balancers: start one, check that it reaches its store, and upgrade those that are older than this agent"
	case len(away) > 0:
		return fmt.Sprintf("controllers %s live and send nothing here: where they are not connected, this agent's log says why; name all with --controller, and upgrade those that are older", strings.Join(away, ", "))
	case len(silent) > 0:
		return fmt.Sprintf("no address is known of load balancers %s: controllers' logs name those that reported too many within a day; upgrade those that report none, or, if they are gone, `ballast ctl node forget` them", strings.Join(slices.Compact(silent), ", "))
	case len(s.listed) == 0:
		return "the controllers know no load balancer: start them with --controller"
	case !s.overflow.IsZero():
		return fmt.Sprintf("the load balancers reported more addresses within a day than the %d that fit: find out which one has so many (its log, and those of controllers)", model.MaxTunnelSources)
	}
	return ""
}
