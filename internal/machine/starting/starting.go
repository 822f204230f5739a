// Package starting follows which servers of a service have begun to take new connections, and how far they have come (slow_start).
//
// A server begins when it takes new connections and did not before: it was added, unhealthy, drained, off, or had weight 0. Those that a load
// balancer finds when it starts, or when a service is new, are whole: nothing is known of who came when, and somebody has to take everything.
//
// It is pure: time is an argument, nothing here does I/O.
package starting

import (
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants: of a tick, in which a server of a policy by classes has some whole class.
const (
	ticks        = 100
	shortestTick = 100 * time.Millisecond
	longestTick  = time.Second
)

// Service is what is known of one service. The zero value has seen nothing. It is not safe for concurrent use.
type Service struct {
	seen   bool
	takers map[uint16]taker
	over   time.Duration
	byTick bool
}

// taker is a server that takes new connections.
type taker struct {
	address netip.Addr // another one: it is another server
	began   time.Time  // zero: it is whole
}

// Follow takes who of the service takes new connections now: down are those that are not healthy.
func (s *Service) Follow(now time.Time, service *model.Service, down map[uint16]bool) {
	takers := make(map[uint16]taker, len(service.Servers))
	for i := range service.Servers {
		server := &service.Servers[i]
		if !server.TakesNew() || down[server.ID] {
			continue
		}
		next := taker{address: server.Address}
		if before, took := s.takers[server.ID]; took && before.address == server.Address {
			next = before
		} else if s.seen {
			next.began = now
		}
		takers[server.ID] = next
	}
	s.seen, s.takers, s.over, s.byTick = true, takers, time.Duration(service.SlowStart), service.Dispatch.ByClasses()
}

// Whole is when one of the Parts is whole.
func (s *Service) Whole(id uint16) time.Time { return s.takers[id].began.Add(s.over) }

// Parts are those that start at a time. again is in how long they are other ones; 0: never, by time alone.
func (s *Service) Parts(now time.Time) (parts slowstart.Parts, again time.Duration) {
	for id, server := range s.takers {
		since := max(now.Sub(server.began), 0)
		if server.began.IsZero() || since >= s.over {
			continue
		}
		if parts == nil {
			parts = slowstart.Parts{}
		}
		// Whole-1 steps, of which the first is a tenth and after the last it is whole.
		step, tick := s.over/(slowstart.Whole-1), min(max(s.over/ticks, shortestTick), longestTick)
		steps := min(since/step, slowstart.Whole-2)
		next := (steps+1)*step - since
		if steps == slowstart.Whole-2 {
			next = s.over - since
		}
		if s.byTick {
			next = min(next, tick-since%tick)
		}
		parts[id] = slowstart.Part{Tenths: uint8(1 + steps), Tick: uint64(since / tick)}
		if again == 0 || next < again {
			again = next
		}
	}
	return parts, again
}
