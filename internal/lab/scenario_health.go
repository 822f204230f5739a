// health: checks take servers out and bring them back; connections that servers have stay.
package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// Implementation constants.
const (
	checkInterval   = 300 * time.Millisecond
	checkTimeout    = 300 * time.Millisecond
	checkRise       = 2
	checkFall       = 2
	checkSlack      = 1500 * time.Millisecond // for machines that are busy with other things
	checkLate       = 4 * time.Second         // and for those that are very busy: nothing waits for it
	healthDeadline  = 2 * time.Second
	healthDownloads = 32
	healthChatters  = 24
	flapsSettled    = 10 // flaps of a check without a change: the server has settled
	flapsMost       = 80
	changesMost     = 8 // of a server whose check flaps
)

// checksTake is how long so many checks in a row take at most: each comes a tenth early or late.
func checksTake(checks int) time.Duration {
	return time.Duration(checks)*checkInterval*11/10 + checkTimeout + checkSlack
}

// checkedService has its servers asked for a page that the lab can take away.
func checkedService() *service {
	one := cookieService(vip4)
	one.Health = &serviceHealth{
		Check: "http", Path: pathHealth, Interval: checkInterval.String(), Timeout: checkTimeout.String(), Rise: checkRise, Fall: checkFall,
	}
	return one
}

func runHealth(s *stage) error {
	topology := Topology{LBs: 2, Servers: make([]ServerNode, 4)}
	outcome, err := s.trial(setup{name: "checks", topology: topology, services: []*service{checkedService()}}, func(t *trial) error {
		h := &healthTrial{trial: t, result: s.result, lbs: []string{lbName(1), lbName(2)}}
		return h.play()
	})
	if err != nil {
		return err
	}
	s.unbroken(outcome)
	s.result.expect(outcome.Throughout["download"] == healthDownloads, "only %d of %d downloads lasted through all events and completed",
		outcome.Throughout["download"], healthDownloads)
	with := checkedService()
	with.Health.Deadline = healthDeadline.String()
	_, err = s.trial(setup{name: "deadline", cuts: true, topology: topology, services: []*service{with}}, func(t *trial) error { return t.losePower(s.result) })
	return err
}

// healthTrial is the series of events and what has to be true of connections that began in between.
type healthTrial struct {
	*trial
	result  *Result
	lbs     []string
	running *load
	spans   []span
}

// span is a time in which new connections must go to some servers and to others not.
type span struct {
	what       string
	from, to   time.Time
	none, some []string
	unanswered bool // until its end
}

func (h *healthTrial) play() (err error) {
	if h.running, err = h.generate(downloads(h.target(), healthDownloads), shorts(h.target(), 40)); err != nil {
		return err
	}
	if err := h.busy(h.running, 100); err != nil {
		return err
	}
	for _, one := range []step{
		{"s1 fails its checks and goes on serving", h.failOne},
		{"s1 answers checks again", h.recoverOne},
		{"all servers fail their checks, s1 before the others: all_down is keep", h.keepLast},
		{"all_down is all", h.useAll},
		{"all_down is none", h.useNone},
		{"all servers answer checks again", h.recoverAll},
		{"the way of lb1 to s3 is cut", h.cutWay},
		{"the way is whole again", h.healWay},
		{"the check of s2 flaps", h.flap},
		{"s2 answers checks for good", h.settle},
	} {
		if err := h.event(one.what, one.do); err != nil {
			return err
		}
	}
	if err := h.running.finish(h.ctx); err != nil {
		return err
	}
	h.judge()
	return nil
}

// timed waits until load balancers were told of a server's health, and measures how long that took since a time.
func (h *healthTrial) timed(name string, since time.Time, i int, sick bool, most time.Duration, lbs ...string) error {
	if err := h.awaitHealth(i, sick, lbs...); err != nil {
		return err
	}
	took := machine().since(since)
	h.result.measure(name, round(took))
	h.result.expect(took <= most+checkLate, "%s: %v, not %v at most", name, took, most)
	return nil
}

// since is when what began at a time must have taken effect, where load balancers were just told of it.
func (h *healthTrial) since(begin time.Time, checks int) time.Time {
	told := time.Now().Add(checkSlack)
	if expected := begin.Add(checksTake(checks)); expected.After(told) {
		return expected
	}
	return told
}

// during watches new connections from a time on until enough of them have begun.
func (h *healthTrial) during(one span) error {
	const connections = 60
	for time.Now().Before(one.from) {
		if err := h.busy(h.running, 5); err != nil {
			return err
		}
	}
	if err := h.busy(h.running, connections); err != nil {
		return err
	}
	one.to = time.Now()
	h.spans = append(h.spans, one)
	return nil
}

func (h *healthTrial) failOne() error {
	begin := time.Now()
	if err := h.sicken(1, true); err != nil {
		return err
	}
	if err := h.timed("seconds_until_unhealthy", begin, 1, true, checksTake(checkFall), h.lbs...); err != nil {
		return err
	}
	for _, lb := range h.lbs {
		if _, detail, err := h.healthOf(lb, 1); err != nil {
			return err
		} else if detail != "HTTP 404 (self)" {
			h.result.fail("%s says that s1 is unhealthy because of %q: the check did not go through the tunnel, or says something else", lb, detail)
		}
	}
	return h.during(span{what: "s1 is unhealthy", from: h.since(begin, checkFall), none: []string{"s1"}, some: []string{"s2", "s3", "s4"}})
}

func (h *healthTrial) recoverOne() error {
	begin := time.Now()
	if err := h.sicken(1, false); err != nil {
		return err
	}
	if err := h.timed("seconds_until_healthy", begin, 1, false, checksTake(checkRise), h.lbs...); err != nil {
		return err
	}
	return h.during(span{what: "s1 is healthy again", from: h.since(begin, checkRise), some: []string{"s1", "s2", "s3", "s4"}})
}

// keepLast: the servers fail within one interval of each other, and the set that is kept is the one before that.
func (h *healthTrial) keepLast() error {
	if err := h.sicken(1, true, h.lbs...); err != nil {
		return err
	}
	if err := h.busy(h.running, 40); err != nil { // the set without s1 stands for a while
		return err
	}
	for _, i := range []int{2, 3, 4} {
		if err := h.sicken(i, true); err != nil {
			return err
		}
	}
	for _, i := range []int{2, 3, 4} {
		if err := h.awaitHealth(i, true, h.lbs...); err != nil {
			return err
		}
	}
	return h.during(span{what: "all are unhealthy, the last set is kept", from: time.Now().Add(checkSlack), none: []string{"s1"}, some: []string{"s2", "s3", "s4"}})
}

func (h *healthTrial) useAll() error {
	h.fleet.Services[0].Health.AllDown = "all"
	if err := h.apply(); err != nil {
		return err
	}
	return h.during(span{what: "all are unhealthy, all are used", from: time.Now().Add(checkSlack), some: []string{"s1", "s2", "s3", "s4"}})
}

// useNone: new connections are refused by silence, so that those that are still trying when a server is back succeed.
func (h *healthTrial) useNone() error {
	h.fleet.Services[0].Health.AllDown = "none"
	if err := h.apply(); err != nil {
		return err
	}
	for _, lb := range h.lbs {
		err := awaitPromised(h.ctx, resumeMax, lb+" gives new connections to nobody", func() error {
			counters, err := h.client(lb).Counters(h.ctx)
			if err == nil && counters["dropped_no_server"] == 0 {
				err = fmt.Errorf("it has dropped none")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if open := h.running.now().OpenByFlow["download"]; open != healthDownloads {
		h.result.fail("of %d downloads %d are open while no server gets new connections", healthDownloads, open)
	}
	one := span{what: "all are unhealthy, nobody is used", from: time.Now(), none: []string{"s1", "s2", "s3", "s4"}, unanswered: true}
	if err := h.busy(h.running, 20); err != nil {
		return err
	}
	one.to = time.Now()
	h.spans = append(h.spans, one)
	return nil
}

func (h *healthTrial) recoverAll() error {
	for i := 1; i <= 4; i++ {
		if err := h.sicken(i, false); err != nil {
			return err
		}
	}
	for i := 1; i <= 4; i++ {
		if err := h.awaitHealth(i, false, h.lbs...); err != nil {
			return err
		}
	}
	return h.until(h.running, stall, "the connections that nobody answered have ended", func(p traffic.Progress) bool {
		return p.Open < healthDownloads+20
	})
}

// misleadLB makes a load balancer send what is for a server to itself, where the bridge drops it; whole: to the server again.
func (h *healthTrial) misleadLB(whole bool) error {
	wrong, err := h.space(lbName(1)).MAC("eth1")
	if whole {
		wrong, err = h.space(serverName(3)).MAC("eth0")
	}
	if err != nil {
		return err
	}
	return h.space(lbName(1)).KnowNeighbours("eth1", map[netip.Addr]net.HardwareAddr{h.topo.serverAddress(3, false): wrong})
}

// cutWay: the load balancer whose way is cut gives the server nothing new, the other one goes on.
func (h *healthTrial) cutWay() error {
	begin := time.Now()
	if err := h.misleadLB(false); err != nil {
		return err
	}
	if err := h.timed("seconds_until_unhealthy_behind_a_cut", begin, 3, true, checksTake(checkFall), lbName(1)); err != nil {
		return err
	}
	before, err := h.dispatched(3)
	if err != nil {
		return err
	}
	if err := h.busy(h.running, 60); err != nil {
		return err
	}
	after, err := h.dispatched(3)
	if err != nil {
		return err
	}
	h.result.expect(after[0] <= before[0]+1, "lb1 gave s3 %d connections though it cannot reach it", after[0]-before[0])
	h.result.expect(after[1] > before[1], "lb2 gave s3 no connection while only lb1 could not reach it")
	state, detail, err := h.healthOf(lbName(2), 3)
	h.result.expect(state == "healthy", "for lb2, which reaches it, s3 is %s: %s", state, detail)
	return err
}

func (h *healthTrial) healWay() error {
	if err := h.misleadLB(true); err != nil {
		return err
	}
	return h.awaitHealth(3, false, lbName(1))
}

// flap makes a check fail and succeed in turns, with thresholds of one, until the server has stayed as it is for long.
func (h *healthTrial) flap() error {
	health := h.fleet.Services[0].Health
	health.AllDown, health.Rise, health.Fall = "", 1, 1
	if err := h.apply(); err != nil {
		return err
	}
	path := filepath.Join(h.nodeDir(serverName(2)), pathHealth)
	states, changes := []string{"healthy", "healthy"}, []int{0, 0}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for flaps, lastChange, next := 0, 0, time.Now(); flaps-lastChange < flapsSettled; {
		if flaps == flapsMost {
			h.result.fail("s2 did not settle: it changed %v times while its check flapped %d times", changes, flaps)
			return nil
		}
		if !time.Now().Before(next) {
			next = time.Now().Add(checkInterval)
			flaps++
			if err := flip(path); err != nil {
				return err
			}
		}
		for i, lb := range h.lbs {
			state, _, err := h.healthOf(lb, 2)
			if err != nil {
				return err
			}
			if state != states[i] {
				states[i], lastChange = state, flaps
				changes[i]++
			}
		}
		select {
		case <-ticker.C:
		case <-h.ctx.Done():
			return context.Cause(h.ctx)
		}
		h.result.measure("flaps_of_the_check", float64(flaps))
	}
	for i, lb := range h.lbs {
		h.result.measure("changes_at_"+lb, float64(changes[i]))
	}
	h.result.expect(slices.Max(changes) <= changesMost, "s2 changed %v times, not %d at most", changes, changesMost)
	h.result.expect(slices.Min(changes) > 0 && !slices.Contains(states, "healthy"), "s2 settled as %v after %v changes, though its check fails every other time", states, changes)
	return nil
}

// flip takes the page that checks ask for away, or puts it back.
func flip(path string) error {
	err := os.Remove(path)
	if os.IsNotExist(err) {
		err = os.WriteFile(path, []byte("healthy\n"), 0o644)
	}
	if err != nil {
		return fmt.Errorf("flip the health of a server: %w", err)
	}
	return nil
}

// settle: what was damped comes back, after more good checks.
func (h *healthTrial) settle() error {
	path := filepath.Join(h.nodeDir(serverName(2)), pathHealth)
	if err := os.WriteFile(path, []byte("healthy\n"), 0o644); err != nil {
		return fmt.Errorf("make a server healthy: %w", err)
	}
	const longest = 16 // rise, doubled as often as it ever is
	return h.timed("seconds_until_healthy_after_flaps", time.Now(), 2, false, checksTake(longest), h.lbs...)
}

// healthOf is what a load balancer thinks of a server.
func (t *trial) healthOf(lb string, i int) (state, detail string, err error) {
	servers, err := t.servers(lb)
	at := slices.IndexFunc(servers, func(s *ballastv1.ServerStatus) bool { return s.Server.Name == serverName(i) })
	if err == nil && at < 0 {
		err = fmt.Errorf("%s has no server %d", lb, i)
	}
	if err != nil {
		return "", "", err
	}
	return servers[at].Health, servers[at].HealthDetail, nil
}

// dispatched is how many connections lb1 and lb2 have given to a server.
func (t *trial) dispatched(i int) (counts []uint64, err error) {
	for _, lb := range []string{lbName(1), lbName(2)} {
		var services []api.ServiceStatus
		if err := t.client(lb).Get(t.ctx, api.PathServices, &services); err != nil {
			return nil, err
		}
		for _, server := range services[0].Servers {
			if server.Name == serverName(i) {
				counts = append(counts, server.Connections)
			}
		}
	}
	return counts, nil
}

// judge looks at where connections went that began in each span.
func (h *healthTrial) judge() {
	for _, one := range h.spans {
		began := map[string]int{}
		for _, connection := range h.running.connections {
			if connection.Started.Before(one.from) || connection.Started.After(one.to) {
				continue
			}
			if !one.unanswered || connection.Ended.Before(one.to) {
				began[connection.Server]++
			}
		}
		h.Progress("%s: %s: new connections by server: %v", h.setup.name, one.what, began)
		for _, server := range one.none {
			h.result.expect(began[server] == 0, "%s: %s got %d new connections", one.what, server, began[server])
		}
		for _, server := range one.some {
			h.result.expect(began[server] > 0, "%s: %s got no new connection", one.what, server)
		}
	}
}
