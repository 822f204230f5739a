// What ctl and Prometheus are told.
package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
)

// Status is nil for a load balancer without BGP.
func (a *Announcer) Status() *api.BGPStatus {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	now := a.o.Tables.Now()
	conf := now.Own().BGP
	if conf.IsZero() {
		return nil
	}
	status := &api.BGPStatus{AS: conf.AS, RouterID: a.routerID, ListenPort: conf.ListenPort, Problems: slices.Clone(a.problems), Neighbors: []api.BGPNeighbor{}, VIPs: []api.BGPVIP{}}
	var sessions []neighbor
	if a.speaker != nil {
		sessions = a.speaker.sessions()
	}
	var addresses []netip.Addr
	for _, n := range conf.Neighbors {
		addresses = append(addresses, n.Address)
	}
	echoes := a.o.BFD.States(addresses)
	for i := range sessions {
		n := &sessions[i]
		row := api.BGPNeighbor{Address: n.Address, AS: n.as, Up: n.established, Since: n.since, Why: n.why, Carries: familyNames(n.carries), Local: n.local}
		if !n.established {
			row.Local = netip.Addr{}
			if row.Why == "" {
				row.Why = noAnswer
			}
		}
		if echo, known := echoes[n.Address]; known {
			row.BFD = &api.BGPBFD{Up: echo.Up, Received: echo.Received, Refused: echo.Refused, Detection: api.InSeconds(echo.Detection)}
		}
		status.Neighbors = append(status.Neighbors, row)
	}
	for _, s := range a.machine.Status() {
		vip := api.BGPVIP{VIP: s.VIP, Announced: s.Announced, Since: s.Since, Why: s.Why, To: []netip.Addr{}}
		family := bgp.RF_IPv4_UC
		if s.VIP.Addr().Is6() {
			family = bgp.RF_IPv6_UC
		}
		for i := range sessions {
			if s.Announced && sessions[i].carries[family] {
				vip.To = append(vip.To, sessions[i].Address)
			}
		}
		status.VIPs = append(status.VIPs, vip)
	}
	return status
}

// noAnswer is why a session is down that has neither been established nor failed.
const noAnswer = "no answer to connection attempts yet"

// firstAttempt is how long a session that is begun may have no answer before that is a problem.
const firstAttempt = 10 * time.Second

// sessionProblem says that there is no session, empty: there is one, or it has just been begun for the first time.
func sessionProblem(n *api.BGPNeighbor, now time.Time) string {
	if n.Up || n.Why == noAnswer && now.Sub(n.Since) < firstAttempt {
		return ""
	}
	return fmt.Sprintf("bgp: no session with %s (AS %d): %s", n.Address, n.AS, n.Why)
}

// Problems are what keeps it from announcing.
func (a *Announcer) Problems() (problems []string) {
	s := a.Status()
	if s == nil {
		return nil
	}
	problems = s.Problems
	for i := range s.Neighbors {
		if problem := sessionProblem(&s.Neighbors[i], time.Now()); problem != "" {
			problems = append(problems, problem)
		}
	}
	up := slices.ContainsFunc(s.Neighbors, func(n api.BGPNeighbor) bool { return n.Up })
	for _, vip := range s.VIPs {
		if vip.Announced && up && len(vip.To) == 0 {
			problems = append(problems, fmt.Sprintf("bgp: no session carries %s: make one of its family, or let the router take IPv6 next hops for it (RFC 8950)", vip.VIP))
		}
	}
	return problems
}

var (
	sessionUp   = prometheus.NewDesc("ballast_bgp_session_up", "1 while the BGP session with a neighbour is established.", []string{"neighbor"}, nil)
	bfdUp       = prometheus.NewDesc("ballast_bgp_bfd_up", "1 while the BFD session with a neighbour is up.", []string{"neighbor"}, nil)
	vipSessions = prometheus.NewDesc("ballast_bgp_vip_sessions", "BGP sessions that announce a VIP; 0: no router learns it from here.", []string{"vip"}, nil)
	announced   = prometheus.NewDesc("ballast_bgp_announced_vips", "VIPs that are announced.", nil, nil)
	withdrawals = prometheus.NewDesc("ballast_bgp_withdrawals_total", "VIPs that were withdrawn since the daemon started.", nil, nil)
)

// Describe is of prometheus.Collector.
func (a *Announcer) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{sessionUp, bfdUp, vipSessions, announced, withdrawals} {
		out <- desc
	}
}

// Collect is of prometheus.Collector.
func (a *Announcer) Collect(out chan<- prometheus.Metric) {
	s := a.Status()
	if s == nil {
		return
	}
	gauge := func(desc *prometheus.Desc, yes bool, labels ...string) {
		value := 0.0
		if yes {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for _, n := range s.Neighbors {
		gauge(sessionUp, n.Up, n.Address.String())
		if n.BFD != nil {
			gauge(bfdUp, n.BFD.Up, n.Address.String())
		}
	}
	count, announcements := 0, a.o.Tables.Now().Running.Announcements()
	for _, vip := range s.VIPs {
		if vip.Announced {
			count++
		}
		if announcements[vip.VIP.Addr()].How == model.VIPOff {
			continue // no router is to learn it
		}
		out <- prometheus.MustNewConstMetric(vipSessions, prometheus.GaugeValue, float64(len(vip.To)), vip.VIP.String())
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	out <- prometheus.MustNewConstMetric(announced, prometheus.GaugeValue, float64(count))
	out <- prometheus.MustNewConstMetric(withdrawals, prometheus.CounterValue, float64(a.withdrawals))
}
