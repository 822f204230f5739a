// elastic: the pool follows the load up and down, as in figure 9 of Cheetah, with real HTTP.
package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/data"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// The experiment of Cheetah V-C, figure 9.
const (
	elasticServers = 24
	elasticAdded   = 7
	elasticDrained = 8
	elasticRate    = 1500 // requests a second at the beginning and at the end
	elasticPeak    = 2500
	elasticLength  = 40 * time.Second
)

// Implementation constants: its share that fits on one machine with every policy at once, and the short form. Time is
// compressed as a whole, connections and events alike, so that as much happens during the life of a connection.
const (
	elasticScale = 16 // the paper's rates are divided by this
	elasticShort = 8 * time.Second
	elasticBytes = 2000
)

// elasticPolicies are services of the same servers, which see the same arrivals and the same events.
func elasticPolicies() []*service {
	return []*service{
		{Name: "hash", VIP: "198.51.100.10", Ports: []uint16{80}, Dispatch: "hash", Affinity: "hash", Fallback: "hash"},
		{Name: "maglev", VIP: "198.51.100.11", Ports: []uint16{80}, Dispatch: "maglev", Affinity: "hash", Fallback: "hash"},
		{Name: "second-chance", VIP: "198.51.100.12", Ports: []uint16{80}, Dispatch: "maglev", Affinity: "hash", Fallback: "second-chance"},
		{Name: "cookie", VIP: "198.51.100.13", Ports: []uint16{80}, Dispatch: "rr", Affinity: "cookie"},
	}
}

func runElastic(s *stage) error {
	length := s.length(elasticShort)
	compression := float64(elasticLength) / float64(length)
	compared := elasticPolicies()
	topology := Topology{LBs: 2, Servers: make([]ServerNode, elasticServers+elasticAdded)}
	for i := range topology.Servers {
		topology.Servers[i].App = &AppServer{CPUs: 1, Sleep: true} // its answers only last: it does no work
	}
	what := setup{name: "all", topology: topology, services: compared}
	for i := range elasticServers {
		what.members = append(what.members, i+1)
	}
	s.Progress("elastic: %d -> %d -> %d requests/s for each of %d policies (those of the paper divided by %d), %v (time compressed %.2g times)",
		elasticRate/elasticScale, elasticPeak/elasticScale, elasticRate/elasticScale, len(compared), elasticScale, length, compression)
	s.result.measure("rate_divided_by", elasticScale)
	s.result.measure("time_compressed_by", compression)
	var ended []traffic.Connection
	var began time.Time
	outcome, err := s.play(what, func(t *trial) error {
		running, err := t.generate(elasticTraffic(compared, s.Seed, length, compression)...)
		if err != nil {
			return err
		}
		began = time.Now()
		if err := t.elasticEvents(began, length); err != nil {
			return err
		}
		if err := running.wait(t.ctx); err != nil {
			return err
		}
		ended = running.connections
		return nil
	})
	if err != nil {
		return err
	}
	s.judgeElastic(outcome, ended, began, compared)
	return nil
}

// elasticTraffic are the same arrivals and durations for every policy.
func elasticTraffic(compared []*service, seed uint64, length time.Duration, compression float64) []traffic.Flow {
	var flows []traffic.Flow
	for _, policy := range compared {
		flows = append(flows, traffic.Flow{
			Name: policy.Name, Target: policy.target(),
			Arrivals: &traffic.Arrivals{
				Seed: seed, PerSecond: elasticRate / elasticScale, Peak: elasticPeak / elasticScale, Length: length,
			},
			Requests: []traffic.Request{{
				Path: fmt.Sprintf("/hold?for=%s&bytes=%d", traffic.Drawn, elasticBytes), Bytes: elasticBytes,
				Draw: data.WebDurations().Scaled(1 / compression),
			}},
		})
	}
	return flows
}

// elasticEvents adds servers one by one while the load rises and drains servers while it falls.
func (t *trial) elasticEvents(begin time.Time, length time.Duration) error {
	half := length / 2
	for i := range elasticAdded {
		added := elasticServers + 1 + i
		at := half * time.Duration(i+1) / (elasticAdded + 1)
		if err := t.atTime(begin.Add(at), fmt.Sprintf("add server s%d", added), func() error { t.addServer(added); return t.apply() }); err != nil {
			return err
		}
	}
	for i := range elasticDrained {
		drained := 1 + i
		at := half + half*time.Duration(i+1)/(elasticDrained+1)
		if err := t.atTime(begin.Add(at), fmt.Sprintf("drain server s%d", drained), func() error { t.drain(drained); return t.apply() }); err != nil {
			return err
		}
	}
	return nil
}

// atTime is an event of a series whose times are part of the experiment.
func (t *trial) atTime(when time.Time, what string, do func() error) error {
	timer := time.NewTimer(time.Until(when))
	defer timer.Stop()
	select {
	case <-timer.C:
		return t.event(what, do)
	case <-t.ctx.Done():
		return context.Cause(t.ctx)
	}
}

// judgeElastic reports every policy as a trial of its own and compares them.
func (s *stage) judgeElastic(outcome Trial, connections []traffic.Connection, began time.Time, compared []*service) {
	broken := map[string]float64{}
	s.result.PerSecond = map[string][]Second{}
	for _, policy := range compared {
		one := Trial{Name: policy.Name}
		for _, connection := range connections {
			if connection.Flow == policy.Name {
				one.add(connection)
			}
		}
		cookie := policy.Affinity == "cookie"
		if cookie {
			one.Events, one.Counters, one.TCP = outcome.Events, outcome.Counters, outcome.TCP
			s.unbroken(one)
		}
		s.result.addTrial(one, !cookie)
		s.result.PerSecond[policy.Name] = perSecond(connections, began, policy.Name)
		broken[policy.Name] = 100 * float64(one.Broken) / float64(max(one.Attempted, 1))
		s.result.measure("broken_percent_"+policy.Name, broken[policy.Name])
		worst := 0.0
		for _, second := range s.result.PerSecond[policy.Name] {
			worst = max(worst, 100*float64(second.Broken)/float64(max(second.Broken+second.Completed, 1)))
		}
		s.result.measure("broken_percent_worst_second_"+policy.Name, worst)
	}
	s.result.expect(broken["hash"] > broken["maglev"] && broken["maglev"] > broken["second-chance"],
		"hash broke %.3g %%, maglev %.3g %%, with second chance %.3g %%: not in that order",
		broken["hash"], broken["maglev"], broken["second-chance"])
}
