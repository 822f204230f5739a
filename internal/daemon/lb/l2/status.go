// What ctl and Prometheus are told.
package l2

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api"
	wire "github.com/ballast-lb/ballast/internal/linux/segment"
	"github.com/ballast-lb/ballast/internal/machine/segment"
	"github.com/ballast-lb/ballast/internal/model"
)

// Status is nil for a load balancer that announces nothing on a segment.
func (a *Announcer) Status() *api.L2Status {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	state := a.o.Tables.Now()
	conf := state.Own().L2
	if conf.IsZero() {
		return nil
	}
	now := time.Now()
	s := &api.L2Status{Interface: conf.Interface, VIPs: []api.L2VIP{}, Peers: []api.L2Peer{}, LeaseSeconds: segment.Lease.Seconds()}
	if a.problem != "" {
		s.Problems = append(s.Problems, a.problem)
	}
	for _, list := range []map[string]recent{a.failing, a.ignored} {
		for _, p := range list {
			s.Problems = append(s.Problems, p.why)
		}
	}
	if a.link != nil {
		s.MAC = a.link.Device.HardwareAddr.String()
	}
	if a.machine == nil {
		return s
	}
	var known map[netip.Addr]wire.Answer
	if a.answers != nil {
		var err error
		if known, err = a.answers.Known(); err != nil {
			s.Problems = append(s.Problems, err.Error())
		}
	}
	for _, v := range a.machine.Status(now) {
		host := a.foreignOf(&v, state)
		s.VIPs = append(s.VIPs, api.L2VIP{VIP: v.VIP, Owned: v.Owned, Owner: v.Owner, Next: v.Heir, Since: v.Since, Why: v.Why, Answers: known[v.VIP].Given, Off: v.Off, Foreign: host})
		if problem := foreignProblem(&v, host, state); problem != "" {
			s.Problems = append(s.Problems, problem)
		}
		if v.Owner == "" && !v.Able && !v.Off {
			s.Problems = append(s.Problems, fmt.Sprintf("no load balancer is known to answer for %s: %s", v.VIP, v.Why))
		}
	}
	for _, p := range a.machine.Peers() {
		s.Peers = append(s.Peers, api.L2Peer{Name: p.Name, MAC: p.MAC.String(), Heard: p.Heard, Owned: p.Owned})
	}
	slices.Sort(s.Problems)
	return s
}

// NotReady is why this load balancer, whose only way of announcing VIPs is the segment, can announce none, empty: it can, or there are none. By BGP, or
// by routes of others, packets may come all the same.
func (a *Announcer) NotReady() string {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	state := a.o.Tables.Now()
	own := state.Own()
	announced := func(s model.Service) bool { return !s.Functions() && s.Announce != model.VIPOff }
	if a.lacking == nil || own.L2.IsZero() || !own.BGP.IsZero() || own.State != model.StateActive || !slices.ContainsFunc(state.Running.Services, announced) {
		return ""
	}
	return "no VIP can be announced: l2: " + a.lacking.Error()
}

// Problems are what keeps VIPs from being announced on the segment.
func (a *Announcer) Problems() (problems []string) {
	s := a.Status()
	if s == nil {
		return nil
	}
	for _, problem := range s.Problems {
		problems = append(problems, "l2: "+problem)
	}
	return problems
}

var (
	owned   = prometheus.NewDesc("ballast_l2_vip_owned", "1 while this load balancer answers ARP and Neighbor Discovery for a VIP.", []string{"vip"}, nil)
	answers = prometheus.NewDesc("ballast_l2_answers_total", "Requests for a VIP that this load balancer has answered.", []string{"vip"}, nil)
	taken   = prometheus.NewDesc("ballast_l2_taken_total", "VIPs taken since the daemon started.", nil, nil)
	ignored = prometheus.NewDesc("ballast_l2_refused_total", "Advertisements refused: forged, or of another time.", nil, nil)
)

// Describe is of prometheus.Collector.
func (a *Announcer) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{owned, answers, taken, ignored} {
		out <- desc
	}
}

// Collect is of prometheus.Collector.
func (a *Announcer) Collect(out chan<- prometheus.Metric) {
	s := a.Status()
	if s == nil {
		return
	}
	for _, v := range s.VIPs {
		if v.Off {
			continue // nobody is to have it
		}
		value := 0.0
		if v.Owned {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(owned, prometheus.GaugeValue, value, v.VIP.String())
		out <- prometheus.MustNewConstMetric(answers, prometheus.CounterValue, float64(v.Answers), v.VIP.String())
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	out <- prometheus.MustNewConstMetric(taken, prometheus.CounterValue, float64(a.taken))
	out <- prometheus.MustNewConstMetric(ignored, prometheus.CounterValue, float64(a.ignoring))
}
