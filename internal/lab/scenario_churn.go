// churn: servers and load balancers come and go, the key rotates, and no connection may break.
package lab

import (
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/traffic"
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

func runChurn(s *stage) error { return churnTwice(s, vip4) }

// churnTwice puts the cookie and the baseline through the same events.
func churnTwice(s *stage, vip string) error {
	topology := Topology{LBs: 2, Servers: make([]ServerNode, 8)}
	first := []int{1, 2, 3, 4, 5, 6}
	outcome, err := s.trial(setup{
		name: "cookie", topology: topology, services: []*service{cookieService(vip)}, members: first,
	}, churn)
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	s.result.expect(outcome.Attempted >= churnConnectionsMin, "only %d connections were attempted", outcome.Attempted)
	s.result.expect(outcome.Throughout["download"] >= churnDownloadsMin,
		"only %d downloads lasted from before the first event until after the last", outcome.Throughout["download"])
	baseline, err := s.trial(setup{
		name: "hash", topology: topology, services: []*service{hashService(vip)}, members: first, baseline: true,
	}, churn)
	if err != nil {
		return err
	}
	s.result.expect(baseline.Broken > 0, "the baseline broke nothing: the events prove nothing")
	return nil
}

// churnTraffic is what clients do during churn: downloads that outlast all events, browsing, and short requests.
func churnTraffic(target string) []traffic.Flow {
	const slow, downloadSeconds = 64 << 10, 26
	return []traffic.Flow{
		{Name: "download", Target: target, Count: churnDownloads, Concurrent: churnDownloads, PerSecond: 80,
			Requests: []traffic.Request{{Path: pathSlow(slow), Bytes: slow * downloadSeconds}}},
		{Name: "short", Target: target, Concurrent: 200, PerSecond: 60, Requests: []traffic.Request{
			{Path: pathBlob, Bytes: 2000}}},
		{Name: "medium", Target: target, Concurrent: 100, PerSecond: 15, Requests: []traffic.Request{
			{Path: pathSlow(200 << 10), Bytes: 400 << 10}}},
		{Name: "browse", Target: target, Concurrent: 100, PerSecond: 10, Requests: []traffic.Request{
			{Path: pathName}, {Path: pathBlob, Bytes: 50000, Pause: time.Second},
			{Path: pathUpload + "browse", Bytes: 30000, Upload: true, Pause: time.Second}}},
	}
}

// idleTraffic are connections that say nothing for seconds at a time.
func idleTraffic(target string) traffic.Flow {
	return traffic.Flow{Name: "idle", Target: target, Count: 60, Concurrent: 60, PerSecond: 30, Requests: []traffic.Request{
		{Path: pathName}, {Path: pathName, Pause: 6 * time.Second}, {Path: pathName, Pause: 6 * time.Second}}}
}

// churn is the series of events. Their pace is that of the connections, not of a clock.
func churn(t *trial) error {
	pool := t.fleet.Services[0]
	idle, err := t.generate(idleTraffic(t.target()))
	if err != nil {
		return err
	}
	running, err := t.generate(churnTraffic(t.target())...)
	if err != nil {
		return err
	}
	for _, one := range []struct {
		after int // connections
		what  string
		do    func() error
	}{
		{300, "add servers s7 and s8", func() error { t.addServer(7); t.addServer(8); return t.apply() }},
		{450, "drain servers s1 and s2", func() error { pool.drain(1); pool.drain(2); return t.apply() }},
		{600, "kill load balancer lb1", func() error { return t.crashLB(1) }},
		{850, "add the next key", func() error { t.addKey(2); return t.apply() }},
		{950, "lb1 returns", func() error { return t.returnLB(1) }},
		{1150, "use the next key", func() error { t.fleet.Keys.Current = 2; return t.apply() }},
		// Their connections live on: what is removed gets no new ones and keeps the old.
		{1250, "remove servers s1 and s2", func() error { t.removeServer(1); t.removeServer(2); return t.apply() }},
		// A connection that is silent keeps the cookie of the old key, so that an operator drops it last.
		{1500, "wait for connections that were idle across the rotation", func() error { return idle.wait(t.ctx) }},
		{1600, "drop the old key", func() error { delete(t.fleet.Keys.Cookie, 1); return t.apply() }},
	} {
		err := t.until(running, 30*time.Second, fmt.Sprintf("%d connections were attempted", one.after),
			func(p traffic.Progress) bool { return p.Attempted >= one.after })
		if err != nil {
			return err
		}
		if err := t.event(one.what, one.do); err != nil {
			return err
		}
	}
	return t.until(running, time.Minute, "the downloads have ended and enough was attempted", func(p traffic.Progress) bool {
		return p.OpenByFlow["download"] == 0 && p.Attempted >= churnConnectionsMin
	})
}

// addKey adds the cookie key of an epoch that nobody writes yet.
func (t *trial) addKey(epoch uint32) { t.fleet.Keys.Cookie[epoch] = randomKey(t.random) }
