// churn: servers and load balancers come and go, the key rotates, and no connection may break.
package lab

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// What churn promises to carry.
const (
	churnConnectionsMin = 2000
	churnDownloadsMin   = 100
	churnDownloads      = 120
)

const vip4, vip6 = "198.51.100.10", "2001:db8:100::10"

// cookieService is a service with Ballast's defaults.
func cookieService(vip string) *service {
	return &service{Name: "web", VIP: vip, Ports: []uint16{80}, Dispatch: "rr", Affinity: "cookie"}
}

// hashService is what load balancers without cookies or tables do; the baseline.
func hashService(vip string) *service {
	return &service{Name: "web", VIP: vip, Ports: []uint16{80}, Dispatch: "hash", Affinity: "hash", Fallback: "hash"}
}

// tableService is a service whose load balancers keep a table of its connections.
func tableService(vip string, table serviceTable) *service {
	return &service{Name: "web", VIP: vip, Ports: []uint16{80}, Dispatch: "rr", Affinity: "table", Table: &table}
}

// localService is what load balancers with tables of their own do, which no other knows; the baseline of those with tables.
func localService(vip string) *service {
	return &service{Name: "web", VIP: vip, Ports: []uint16{80}, Dispatch: "rr", Affinity: "local-table", Fallback: "hash"}
}

// AllPolicies as Options.Dispatch stands for one service of each policy.
const AllPolicies = "all"

// policies are all of them. Those that follow load get new weights ten times a second.
var policies = []string{"hash", "maglev", "rr", "wrr", "p2c", "least", "awrr", "awfd", "wcmp", "lcf"}

// Implementation constants: between updates of weights, and how often they must be seen to change during churn.
const (
	weightsInterval  = 100 * time.Millisecond
	weightChangesMin = 10
)

func followsLoad(dispatch string) bool {
	return slices.Contains([]string{"awrr", "awfd", "lcf"}, dispatch)
}

// policyService is a service with cookies and the given policy.
func policyService(vip, dispatch string) *service {
	one := cookieService(vip)
	one.Dispatch = dispatch
	if followsLoad(dispatch) {
		one.Load = &serviceLoad{Source: "connections", Interval: weightsInterval.String()}
	}
	return one
}

// withAffinity gives a service with cookies the affinity that was asked for.
func (s *stage) withAffinity(one *service) (*service, error) {
	switch s.Affinity {
	case "", "cookie", "table":
		one.Affinity = cmp.Or(s.Affinity, one.Affinity)
		return one, nil
	default:
		return nil, fmt.Errorf("%s with affinity %s: %w: it promises nothing there: use cookie or table", s.result.Scenario, s.Affinity, ErrUsage)
	}
}

func runChurn(s *stage) error {
	dispatch := cmp.Or(s.Dispatch, "rr")
	switch {
	case s.Dispatch == AllPolicies:
		return churnPolicies(s)
	case !slices.Contains(policies, dispatch):
		return fmt.Errorf("churn with dispatch %q: %w: there is no such policy: use one of %v, or %s", s.Dispatch, ErrUsage, policies, AllPolicies)
	}
	one, err := s.withAffinity(policyService(vip4, dispatch))
	if err != nil {
		return err
	}
	return churnTwice(s, one)
}

// churnPolicies puts one service of each policy through the same events at once.
func churnPolicies(s *stage) error {
	what := setup{name: AllPolicies, topology: Topology{LBs: 2, Servers: make([]ServerNode, 8)}, members: []int{1, 2, 3, 4, 5, 6}, reports: true}
	for i, dispatch := range policies {
		one, err := s.withAffinity(policyService(fmt.Sprintf("198.51.100.%d", 10+i), dispatch))
		if err != nil {
			return err
		}
		one.Name = dispatch
		what.services = append(what.services, one)
	}
	var changes map[string]int
	outcome, err := s.trial(what, func(t *trial) error {
		stop := t.countWeightChanges(lbName(2))
		defer func() { changes = stop() }()
		return churn(t)
	})
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	for _, dispatch := range policies {
		throughout := outcome.Throughout[flowName(what.services, dispatch, "download")]
		s.result.measure("throughout_"+dispatch, float64(throughout))
		s.result.expect(throughout >= churnDownloadsMin/len(policies),
			"%s: only %d downloads lasted from before the first event until after the last", dispatch, throughout)
		if followsLoad(dispatch) {
			s.result.measure("weight_changes_"+dispatch, float64(changes[dispatch]))
			s.result.expect(changes[dispatch] >= weightChangesMin, "%s: weights changed only %d times: they did not follow load", dispatch, changes[dispatch])
		}
	}
	return nil
}

// flowName is the name of a service's flow where there may be several services.
func flowName(services []*service, service, flow string) string {
	if len(services) == 1 {
		return flow
	}
	return service + " " + flow
}

// churnTwice puts a service with cookies and the baseline through the same events.
func churnTwice(s *stage, with *service) error {
	topology := Topology{LBs: 2, Servers: make([]ServerNode, 8)}
	first := []int{1, 2, 3, 4, 5, 6}
	outcome, err := s.trial(setup{
		name: with.Affinity, topology: topology, services: []*service{with}, members: first, reports: with.Load != nil,
	}, churn)
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	s.result.expect(outcome.Attempted >= churnConnectionsMin, "only %d connections were attempted", outcome.Attempted)
	s.result.expect(outcome.Throughout["download"] >= churnDownloadsMin,
		"only %d downloads lasted from before the first event until after the last", outcome.Throughout["download"])
	baseline, err := s.trial(setup{
		name: "hash", topology: topology, services: []*service{hashService(with.VIP)}, members: first, baseline: true,
	}, churn)
	if err != nil {
		return err
	}
	s.result.expect(baseline.Broken > 0, "the baseline broke nothing: the events prove nothing")
	return nil
}

// churnTraffic is what the clients of all services together do during churn: downloads that outlast all events, however long these take on
// a busy machine, browsing, and short requests.
func (t *trial) churnTraffic() []traffic.Flow {
	const downloadSeconds = 4
	services, rate := t.fleet.Services, t.rate()
	slow, medium, share := int(64<<10*rate), int(200<<10*rate), float64(len(services))/rate
	var flows []traffic.Flow
	for _, one := range services {
		name, target := func(flow string) string { return flowName(services, one.Name, flow) }, one.target()
		flows = append(flows,
			traffic.Flow{Name: name("download"), Target: target, Count: churnDownloads / len(services), Concurrent: churnDownloads, PerSecond: 80 / share, Repeat: true,
				Requests: []traffic.Request{{Path: pathSlow(slow), Bytes: int64(slow) * downloadSeconds}}},
			traffic.Flow{Name: name("short"), Target: target, Concurrent: 200, PerSecond: 60 / share, Requests: []traffic.Request{
				{Path: pathBlob, Bytes: 2000}}},
			traffic.Flow{Name: name("medium"), Target: target, Concurrent: 100, PerSecond: 15 / share, Requests: []traffic.Request{
				{Path: pathSlow(medium), Bytes: 2 * int64(medium)}}},
			traffic.Flow{Name: name("browse"), Target: target, Concurrent: 100, PerSecond: 10 / share, Requests: []traffic.Request{
				{Path: pathName}, {Path: pathBlob, Bytes: 50000, Pause: time.Second},
				{Path: pathUpload + "browse", Bytes: 30000, Upload: true, Pause: time.Second}}})
	}
	return flows
}

// idleTraffic are connections that say nothing for seconds at a time.
func (t *trial) idleTraffic() []traffic.Flow {
	services := t.fleet.Services
	var flows []traffic.Flow
	share := len(services)
	for _, one := range services {
		flows = append(flows, traffic.Flow{
			Name: flowName(services, one.Name, "idle"), Target: one.target(), Count: 60 / share, Concurrent: 60, PerSecond: 30 * t.rate() / float64(share),
			Requests: []traffic.Request{{Path: pathName}, {Path: pathName, Pause: 6 * time.Second}, {Path: pathName, Pause: 6 * time.Second}}})
	}
	return flows
}

// drain ends new connections to a server in every service.
func (t *trial) drain(i int) {
	for _, one := range t.fleet.Services {
		one.drain(i)
	}
}

// churn is the series of events. Their pace is that of the connections, not of a clock.
func churn(t *trial) error {
	idle, err := t.generate(t.idleTraffic()...)
	if err != nil {
		return err
	}
	running, err := t.generate(t.churnTraffic()...)
	if err != nil {
		return err
	}
	for _, one := range []struct {
		after int // connections
		what  string
		do    func() error
	}{
		{300, "add servers s7 and s8", func() error { t.addServer(7); t.addServer(8); return t.apply() }},
		{450, "drain servers s1 and s2", func() error { t.drain(1); t.drain(2); return t.apply() }},
		{600, "kill load balancer lb1", func() error { return errors.Join(t.copyMounts(), t.crashLB(1)) }},
		{850, "add the next key", func() error { t.addKey(2); return t.apply() }},
		{950, "lb1 returns", func() error { return t.returnLB(1) }},
		{1150, "use the next key", func() error { t.fleet.Keys.Current = 2; return t.apply() }},
		// Their connections live on: what is removed gets no new ones and keeps the old.
		{1250, "remove servers s1 and s2", func() error { t.removeServer(1); t.removeServer(2); return t.apply() }},
		// A connection that is silent keeps the cookie of the old key, so that an operator drops it last.
		{1500, "wait for connections that were idle across the rotation", func() error { return idle.wait(t.ctx) }},
		{1500, "wait until no client echoes the old key", func() error { return t.awaitRenewed(1) }},
		{1600, "drop the old key", func() error { delete(t.fleet.Keys.Cookie, 1); return t.apply() }},
	} {
		err := t.until(running, t.stretched(30*time.Second), fmt.Sprintf("%d connections were attempted", one.after),
			func(p traffic.Progress) bool { return p.Attempted >= one.after })
		if err != nil {
			return err
		}
		if err := t.event(one.what, one.do); err != nil {
			return err
		}
	}
	return t.until(running, t.stretched(time.Minute), "enough was attempted", func(p traffic.Progress) bool { return p.Attempted >= churnConnectionsMin })
}

// awaitRenewed waits until no living connection echoes the key of an epoch, as operators do before they drop it.
func (t *trial) awaitRenewed(epoch uint32) error {
	return await(t.ctx, t.stretched(30*time.Second), fmt.Sprintf("no client echoes the key of epoch %d", epoch), func() error {
		for i := range t.topo.Servers { // also those that were removed: they have connections to end
			node := serverName(i + 1)
			var status api.AgentStatus
			if err := t.client(node).Get(t.ctx, api.PathStatus, &status); err != nil {
				return err
			}
			if n := status.Echoes[epoch]; n > 0 {
				return fmt.Errorf("%d connections of %s do", n, node)
			}
		}
		return nil
	})
}

// addKey adds the cookie key of an epoch that nobody writes yet.
func (t *trial) addKey(epoch uint32) { t.fleet.Keys.Cookie[epoch] = randomKey(t.random) }
