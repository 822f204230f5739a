package daemon

import (
	"context"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	datapath "github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// onWeights takes soft weights of one service. What it cannot apply is forgotten: newer ones come soon.
func (lb *LB) onWeights(service string, update *follow.Update) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	weights := lb.weights[service]
	if weights == nil {
		s := lb.node.Running.Service(service)
		if s == nil || !lb.weighs(s) {
			return
		}
		weights = &follow.Weights{}
		lb.weights[service] = weights
	}
	if _, changed := weights.Merge(update); !changed {
		return
	}
	changes, err := lb.tables.Reweigh(service, weights.Values)
	if err == nil && len(changes) > 0 {
		err = lb.apply(changes)
	}
	if err != nil {
		lb.log.Error("weights not applied, the old ones go on", "service", service, "error", err)
	}
}

// apply carries changes out. Where that fails, the plan is what the tables really say: it knows no names of services then, so that
// the whole desired state has to be carried out again (ageOnce). Callers hold mu.
func (lb *LB) apply(changes []plan.Change) error {
	err := lb.path.Apply(changes)
	if err == nil {
		return nil
	}
	lb.applyIncomplete = true
	if tables, restoreErr := plan.Restore(lb.options.Limits, lb.path); restoreErr == nil {
		lb.tables = tables
	}
	return err
}

// weighs reports whether this node shares the service's connections out by load. Callers hold mu.
func (lb *LB) weighs(s *model.Service) bool { return s.Dispatch.FollowsLoad() && !lb.sendsToNodes(s) }

// softWeights are those that the tables should say, nil: none are known. Callers hold mu.
func (lb *LB) softWeights(service string) map[uint16]uint16 {
	if weights := lb.weights[service]; weights != nil {
		return weights.Values
	}
	return nil
}

// forgetWeights drops the soft weights of services that have none (any more). Callers hold mu.
func (lb *LB) forgetWeights() {
	follows := make(map[string]bool, len(lb.weights))
	for i := range lb.node.Running.Services {
		s := &lb.node.Running.Services[i]
		follows[s.Name] = lb.weighs(s)
	}
	maps.DeleteFunc(lb.weights, func(name string, _ *follow.Weights) bool { return !follows[name] })
}

// takeOverWeights goes on with the soft weights that an earlier process left in the tables, until others are told.
func (lb *LB) takeOverWeights() {
	for service, weights := range lb.tables.Weights(lb.node.Running.Services) {
		lb.weights[service] = &follow.Weights{Values: weights}
	}
}

// Implementation constants of traffic reports.
const (
	trafficPeriod    = time.Second           // of services whose dispatch does not follow load
	trafficPeriodMin = 50 * time.Millisecond // of the others, whatever their interval: reading takes time
	trafficFull      = 10 * time.Second      // a report says everything this often, and else what has changed
)

// reportTraffic tells whoever weighs the servers what this node sees of them, until ctx ends.
func (lb *LB) reportTraffic(ctx context.Context) {
	reported := map[counterKey]datapath.ServerTraffic{}
	var full, slow time.Time
	for {
		now := time.Now()
		if now.Sub(full) >= trafficFull {
			full = now
			clear(reported)
		}
		everything := now.Sub(slow) >= trafficPeriod
		if everything {
			slow = now
		}
		seen, pause := lb.trafficSince(reported, everything)
		if len(seen) > 0 {
			lb.tellTraffic(seen)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)): // never in step with other nodes
		case <-ctx.Done():
			return
		}
	}
}

type counterKey struct {
	service string
	id      uint16
}

// counted is a server whose counters are to be read.
type counted struct {
	counterKey
	index uint32
}

// toCount lists the servers of services that follow load, or of all; pause: until it should be called again.
func (lb *LB) toCount(everything bool) (servers []counted, pause time.Duration) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	pause = trafficPeriod
	places := lb.tables.Places()
	for i := range lb.node.Running.Services {
		s := &lb.node.Running.Services[i]
		if places[s.Name].Nodes {
			continue // its servers are seen by nodes of the second tier
		}
		if s.Dispatch.FollowsLoad() {
			pause = min(pause, max(time.Duration(s.Load.Interval), trafficPeriodMin))
		} else if !everything {
			continue
		}
		for id, index := range places[s.Name].Counters {
			servers = append(servers, counted{counterKey{s.Name, id}, index})
		}
	}
	return servers, pause
}

// seenServer is what this node saw of a server since it started.
type seenServer struct {
	counterKey
	datapath.ServerTraffic
}

// trafficSince returns the counters that changed since reported. They are read without the lock: there may be tens of thousands.
func (lb *LB) trafficSince(reported map[counterKey]datapath.ServerTraffic, everything bool) (seen []seenServer, pause time.Duration) {
	servers, pause := lb.toCount(everything)
	for _, server := range servers {
		traffic, err := lb.path.ServerTraffic(server.index)
		if last, known := reported[server.counterKey]; err != nil || known && last == traffic {
			continue
		}
		reported[server.counterKey] = traffic
		seen = append(seen, seenServer{server.counterKey, traffic})
	}
	return seen, pause
}

// tellTraffic gives what was seen to the engine in this process, or to the controllers.
func (lb *LB) tellTraffic(seen []seenServer) {
	if lb.engine != nil {
		servers := make([]engine.ServerTraffic, len(seen))
		for i, s := range seen {
			servers[i] = engine.ServerTraffic{Service: s.service, ID: s.id,
				Seen: balance.Seen{Connections: s.Connections, Closed: s.Closed, Packets: s.Packets}}
		}
		lb.engine.Traffic(self, servers)
		return
	}
	report := &ballastv1.TrafficReport{Servers: make([]*ballastv1.ServerTraffic, len(seen))}
	for i, s := range seen {
		report.Servers[i] = &ballastv1.ServerTraffic{Service: s.service, Id: uint32(s.id), Connections: s.Connections, Closed: s.Closed,
			Packets: s.Packets, Bytes: s.Bytes}
	}
	lb.remote.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Traffic{Traffic: report}})
}

// openConnections estimates the connections of a server that live, as far as this node has seen their ends.
func (lb *LB) openConnections(dispatch model.Dispatch, index uint32, traffic datapath.ServerTraffic) int32 {
	if dispatch.CountsOpen() {
		return lb.path.OpenConnections(index)
	}
	return traffic.Open()
}
