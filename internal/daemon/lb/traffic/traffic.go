// Package traffic reports what this load balancer sees of servers, to weigh them by.
package traffic

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/linux/lb"
)

// Implementation constants.
const (
	period    = time.Second           // of services whose dispatch does not follow load
	periodMin = 50 * time.Millisecond // of the others, whatever their interval: reading takes time
	periodAll = 10 * time.Second      // a report says everything this often, and else what has changed
)

// Server is what this node saw of a server since it started.
type Server struct {
	Service string
	ID      uint16
	Seen
}

// Seen are the counters of a server, and the estimate of its open connections that this node chooses by; nil: it does not.
type Seen struct {
	lb.ServerTraffic
	Estimate *uint32
	Start    dataplane.Start // zero: it has all of its weight
}

func (s Seen) same(other Seen) bool {
	return s.ServerTraffic == other.ServerTraffic && s.Start == other.Start && (s.Estimate == nil) == (other.Estimate == nil) && (s.Estimate == nil || *s.Estimate == *other.Estimate)
}

// Report gives away what changes until ctx ends.
func Report(ctx context.Context, tables *dataplane.Tables, report func([]Server)) {
	reported := map[key]Seen{}
	var all, slow time.Time
	for {
		at := time.Now()
		if at.Sub(all) >= periodAll {
			all = at
			clear(reported)
		}
		everything := at.Sub(slow) >= period
		if everything {
			slow = at
		}
		seen, pause := since(tables.Now(), tables.Starting(), reported, everything)
		if len(seen) > 0 {
			report(seen)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)): // never in step with other nodes
		case <-ctx.Done():
			return
		}
	}
}

type key struct {
	service string
	id      uint16
}

// since returns the counters that changed since reported, of services that follow load, or of all; pause: until it should be called again.
func since(now *dataplane.Snapshot, starting map[string]map[uint16]dataplane.Start, reported map[key]Seen, everything bool) (seen []Server, pause time.Duration) {
	pause = period
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		place := now.Places[s.Name]
		if place.Nodes {
			continue // its servers are seen by nodes of the second tier
		}
		if s.FollowsLoad() {
			pause = min(pause, max(time.Duration(s.Load.Interval), periodMin))
		} else if !everything {
			continue
		}
		for id := range place.Counters {
			counters, open, err := now.Traffic(s.CountsOpen(), place, id)
			at, traffic := key{s.Name, id}, Seen{ServerTraffic: counters, Start: starting[s.Name][id]}
			if s.CountsOpen() {
				traffic.Estimate = new(uint32(open))
			}
			if last, known := reported[at]; err != nil || known && last.same(traffic) {
				continue
			}
			reported[at] = traffic
			seen = append(seen, Server{s.Name, id, traffic})
		}
	}
	return seen, pause
}
