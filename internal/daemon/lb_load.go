package daemon

import (
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// toldWeights takes soft weights of one service. What it cannot apply is forgotten: newer ones come soon.
func (lb *LB) toldWeights(update *ballastv1.Weights) {
	if lb.options.LoseWeights > 0 && rand.Float64() < lb.options.LoseWeights {
		return
	}
	lb.mu.Lock()
	defer lb.mu.Unlock()
	s := lb.node.Running.Service(update.Service)
	if s == nil || !s.Dispatch.FollowsLoad() {
		return
	}
	weights := lb.weights[update.Service]
	if weights == nil {
		weights = &follow.Weights{}
		lb.weights[update.Service] = weights
	}
	if !weights.Take(update.Term, update.Version, update.Complete, update.Ids, update.Weights) {
		return
	}
	lb.weightsUnsaved = true
	changes, err := lb.tables.Reweigh(update.Service, weights.Values)
	if err == nil && len(changes) > 0 {
		err = lb.apply(changes)
	}
	if err != nil {
		lb.log.Error("weights not applied, the old ones go on", "service", update.Service, "error", err)
	}
}

// apply carries changes out. Where that fails, the plan is what the tables really say. Callers hold mu.
func (lb *LB) apply(changes []plan.Change) error {
	err := lb.path.Apply(changes)
	if err == nil {
		return nil
	}
	if tables, restoreErr := plan.Restore(lb.options.Limits, lb.path); restoreErr == nil {
		lb.tables = tables
	}
	return err
}

// softWeights are those that the tables should say, nil: none are known. Callers hold mu.
func (lb *LB) softWeights(service string) map[uint16]uint16 {
	if weights := lb.weights[service]; weights != nil {
		return weights.Values
	}
	return nil
}

// forgetWeights drops the soft weights of services that have none (any more). Callers hold mu.
func (lb *LB) forgetWeights() {
	maps.DeleteFunc(lb.weights, func(name string, _ *follow.Weights) bool {
		s := lb.node.Running.Service(name)
		return s == nil || !s.Dispatch.FollowsLoad()
	})
}

func (lb *LB) weightsPath() string {
	return filepath.Join(lb.options.StateDir, lb.options.Instance, "weights.json")
}

// saveWeights keeps soft weights for the next process: it goes on with them until it is told others. Callers hold mu.
func (lb *LB) saveWeights() {
	if !lb.weightsUnsaved {
		return
	}
	if err := replaceFile(lb.weightsPath(), lb.weights); err != nil {
		lb.log.Error("weights not saved: a restart begins with equal ones", "error", err)
		return
	}
	lb.weightsUnsaved = false
}

// loadWeights takes what an earlier process has saved. Terms and versions begin anew: whoever weighs now knows better.
func (lb *LB) loadWeights() {
	saved := map[string]follow.Weights{}
	if _, err := readFile(lb.weightsPath(), &saved); err != nil {
		lb.log.Warn("weights begin equal", "error", err)
	}
	for service, w := range saved {
		lb.weights[service] = &follow.Weights{Values: w.Values}
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
	told := map[counterKey]datapath.ServerTraffic{}
	var full, slow time.Time
	for {
		now := time.Now()
		if now.Sub(full) >= trafficFull {
			full = now
			clear(told)
		}
		everything := now.Sub(slow) >= trafficPeriod
		if everything {
			slow = now
		}
		report, pause := lb.trafficSince(told, everything)
		if len(report.Servers) > 0 {
			lb.tell(&ballastv1.FromNode{Message: &ballastv1.FromNode_Traffic{Traffic: report}})
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
	dispatch model.Dispatch
	index    uint32
}

// toCount lists the servers of services that follow load, or of all; pause: until it should be called again.
func (lb *LB) toCount(everything bool) (servers []counted, pause time.Duration) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	pause = trafficPeriod
	places := lb.tables.Places()
	for i := range lb.node.Running.Services {
		s := &lb.node.Running.Services[i]
		if s.Dispatch.FollowsLoad() {
			pause = min(pause, max(time.Duration(s.Load.Interval), trafficPeriodMin))
		} else if !everything {
			continue
		}
		for id, index := range places[s.Name].Counters {
			servers = append(servers, counted{counterKey{s.Name, id}, s.Dispatch, index})
		}
	}
	return servers, pause
}

// trafficSince returns the counters that changed since told. They are read without the lock: there may be tens of thousands.
func (lb *LB) trafficSince(told map[counterKey]datapath.ServerTraffic, everything bool) (report *ballastv1.TrafficReport, pause time.Duration) {
	servers, pause := lb.toCount(everything)
	report = &ballastv1.TrafficReport{}
	for _, server := range servers {
		traffic, err := lb.path.ServerTraffic(server.index)
		if last, known := told[server.counterKey]; err != nil || known && last == traffic {
			continue
		}
		told[server.counterKey] = traffic
		report.Servers = append(report.Servers, &ballastv1.ServerTraffic{
			Service: server.service, Id: uint32(server.id), Connections: traffic.Connections, Closed: traffic.Closed,
			Open: uint32(lb.openConnections(server.dispatch, server.index, traffic)), Packets: traffic.Packets, Bytes: traffic.Bytes,
		})
	}
	return report, pause
}

// tell gives a report to the engine in this process, or to the controllers.
func (lb *LB) tell(message *ballastv1.FromNode) {
	if lb.remote != nil {
		lb.remote.joined.Send(message)
		return
	}
	switch m := message.Message.(type) {
	case *ballastv1.FromNode_Traffic:
		lb.engine.Traffic(self, m.Traffic)
	case *ballastv1.FromNode_Health:
		lb.engine.Health(self, m.Health)
	}
}

// openEstimates follow the connections of servers whose policy does not count them in the data path, by index of their counters. They
// are safe for concurrent use.
type openEstimates struct {
	mutex sync.Mutex
	by    map[uint32]openEstimate
}

type openEstimate struct {
	connections, closed uint64
	open                float64
	at                  time.Time
}

// openConnections estimates the connections of a server that live.
func (lb *LB) openConnections(dispatch model.Dispatch, index uint32, traffic datapath.ServerTraffic) int32 {
	if dispatch == model.DispatchP2C || dispatch == model.DispatchLeast {
		return lb.path.OpenConnections(index)
	}
	return lb.open.next(time.Now(), index, traffic)
}

// next is those begun less those ended; those whose end nobody saw are forgotten in the course of loadMemory.
func (o *openEstimates) next(now time.Time, index uint32, traffic datapath.ServerTraffic) int32 {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.by == nil {
		o.by = map[uint32]openEstimate{}
	}
	e := o.by[index]
	if traffic.Connections < e.connections || traffic.Closed < e.closed {
		e = openEstimate{} // another server counts here now
	}
	if !e.at.IsZero() {
		e.open *= math.Exp(-now.Sub(e.at).Seconds() / loadMemory.Seconds())
	}
	e.open += float64(traffic.Connections-e.connections) - float64(traffic.Closed-e.closed)
	e.open = max(0, e.open)
	e.connections, e.closed, e.at = traffic.Connections, traffic.Closed, now
	o.by[index] = e
	return int32(min(e.open+0.5, math.MaxInt32))
}
