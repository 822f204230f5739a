package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/model"
)

// check objects to what is wrong although every value by itself is right.
func (r *reader) check(s *Scenario) {
	if !slices.Contains(model.TableSizes(), s.TableSlots) {
		r.FailAt("table_slots", fmt.Sprint("use one of ", model.TableSizes()), "%d is none of them", s.TableSlots)
	}
	r.checkGroups(s)
	for i := range s.Events {
		r.checkEvent(s, i)
	}
	if n := s.peakServers(); n > maxServers {
		r.FailAt("events", fmt.Sprintf("add fewer: at most %d altogether", maxServers), "up to %d servers", n)
	}
	if s.requests() {
		r.checkRequests(s)
	} else {
		r.checkConnections(s)
	}
	for i, p := range s.Policies {
		r.checkPolicy(s, p, fmt.Sprintf("policies[%d]", i))
		if slices.ContainsFunc(s.Policies[:i], func(other Policy) bool { return other.Name == p.Name }) {
			r.FailAt(fmt.Sprintf("policies[%d]", i), "give it another name", "a second policy %q", p.Name)
		}
	}
	r.checkLoadBalancers(s)
	for i, e := range s.Expect {
		path := fmt.Sprintf("expect[%d]", i)
		if e.Policy != "" && !slices.ContainsFunc(s.Policies, func(p Policy) bool { return p.Name == e.Policy }) {
			r.FailAt(path+".policy", "use the name of a policy", "there is none called %q", e.Policy)
		}
		if e.Measure == "" || e.Low > e.High {
			r.FailAt(path, "give measure, and at_least or at_most", "nothing can be judged by this")
		} else if names := s.kind().names(); !slices.Contains(names, e.Measure) {
			r.FailAt(path+".measure", "use one of "+strings.Join(names, ", "), "%s is not known of %s", e.Measure, s.what())
		}
	}
	if r.Failed() == 0 {
		r.checkCost(s)
	}
}

func (r *reader) checkGroups(s *Scenario) {
	for i, group := range s.Servers {
		if slices.ContainsFunc(s.Servers[:i], func(other Group) bool { return other.Name == group.Name }) {
			r.FailAt(fmt.Sprintf("servers[%d]", i), "give it another name", "a second group %q", group.Name)
		}
	}
	if n := s.servers(); n < 1 || n > maxServers {
		r.FailAt("servers", fmt.Sprintf("give 1 to %d", maxServers), "%d servers", n)
	}
	if len(s.Policies) == 0 {
		r.FailAt("policies", "give at least one", "there are none")
	}
}

func (r *reader) checkEvent(s *Scenario, number int) {
	e, path := &s.Events[number], fmt.Sprintf("events[%d]", number)
	if e.Every != 0 && e.Until == 0 {
		e.Until = s.Length
	}
	if e.Every == 0 && e.Until != 0 {
		r.FailAt(path+".until", "give every, too, or remove it", "an event that does not repeat")
	}
	if e.At > s.Length || e.Until > s.Length || e.Every != 0 && e.Until < e.At {
		r.FailAt(path, "give times within the length", "it would happen after the end, or end before it begins")
	}
	if e.Group != "" && !slices.ContainsFunc(s.Servers, func(g Group) bool { return g.Name == e.Group }) {
		r.FailAt(path+".group", "use the name of a group", "there is none called %q", e.Group)
	}
	if e.Remove+e.Fail+e.Add+e.Slow+e.LoadBalancers == 0 && e.Rate < 0 {
		r.FailAt(path, "give remove, fail, add, slow, rate or load_balancers", "nothing happens")
	}
	if e.Slow > 0 && !s.requests() {
		r.FailAt(path+".slow", "give traffic.work, or remove it", "servers that only have connections do no work")
	}
	if r.Has(path+".speed") && e.Slow == 0 {
		r.FailAt(path+".speed", "give slow, too, or remove it", "nobody is slowed down")
	}
	if e.Rate >= 0 && s.Traffic.Trace != nil {
		r.FailAt(path+".rate", "remove it", "a trace says itself when connections begin")
	}
}

// checkLoadBalancers objects to load balancers that make no difference.
func (r *reader) checkLoadBalancers(s *Scenario) {
	if slices.ContainsFunc(s.Policies, Policy.knowsLoadBalancers) {
		return
	}
	const remedy = "remove it, or compare rr, wrr, awrr or affinity local-table"
	if r.Has("load_balancers") {
		r.FailAt("load_balancers", remedy, "all policies of this file know the same at every load balancer")
	}
	for i, e := range s.Events {
		if e.LoadBalancers > 0 {
			r.FailAt(fmt.Sprintf("events[%d].load_balancers", i), remedy, "all policies of this file know the same at every load balancer")
		}
	}
}

func (r *reader) checkPolicy(s *Scenario, p Policy, path string) {
	given := func(key string) bool { return r.Has(path + "." + key) }
	if p.Dispatch == "" {
		r.FailAt(path, "give dispatch", "it does not say who gets new connections")
		return
	}
	if p.Affinity != "cookie" && p.Affinity != "" && !p.usesTable() {
		r.FailAt(path+".affinity", "use dispatch maglev, hash or wcmp, or affinity cookie", "%s finds no server again: it is no table", p.Dispatch)
	}
	if p.Dispatch == "choices" && p.Affinity != "cookie" && p.Affinity != "history" && p.Affinity != "" {
		r.FailAt(path+".affinity", "use cookie or history", "with %s no packet tells which candidate has accepted", p.Affinity)
	}
	for _, key := range []string{"candidates", "threshold"} {
		if given(key) && p.Dispatch != "choices" {
			r.FailAt(path+"."+key, "remove it", "only choices has it")
		}
	}
	if p.Affinity == "history" && p.Depth < 2 && p.Dispatch != "choices" {
		r.FailAt(path+".depth", "use affinity hash", "a history of one owner is none")
	}
	if given("depth") && p.Affinity != "history" {
		r.FailAt(path+".depth", "remove it", "only affinity history has one")
	}
	if given("interval") && !slices.Contains(byReport, p.Dispatch) {
		r.FailAt(path+".interval", "remove it", "%s follows no reports", p.Dispatch)
	}
	if given("load") && !slices.Contains(byReport, p.Dispatch) {
		r.FailAt(path+".load", "remove it", "%s follows no reports", p.Dispatch)
	}
	if given("counters") && !p.takesTurns() {
		r.FailAt(path+".counters", "remove it", "%s takes no turns", p.Dispatch)
	}
	if given("classes") && p.Dispatch != "awfd" {
		r.FailAt(path+".classes", "remove it", "only awfd has them")
	}
	if slices.Contains(byRounds, p.Dispatch) && s.peakServers() > model.MaxRoundServers {
		r.FailAt(path+".dispatch", "use another policy, or fewer servers", "%d servers, a round has at most %d turns", s.peakServers(), model.MaxRoundServers)
	}
}

// ofOtherWorld objects to keys that mean nothing in the world of this scenario.
func (r *reader) ofOtherWorld(why string, paths ...string) {
	for _, path := range paths {
		if r.Has(path) {
			r.FailAt(path, "remove it", "%s", why)
		}
	}
}

// checkRequests objects to what only a world of connections knows, and computes the rate.
func (r *reader) checkRequests(s *Scenario) {
	const once = "each request finds its server once: nothing is to be found again"
	r.ofOtherWorld("requests have a connection each: it lasts as long as they do", "traffic.lifetimes", "traffic.connections", "traffic.trace")
	for i := range s.Policies {
		path := fmt.Sprintf("policies[%d]", i)
		r.ofOtherWorld(once, path+".affinity", path+".depth")
	}
	capacity := 0.0
	for _, group := range s.Servers {
		capacity += float64(group.Count*group.Cores) * group.Speed
	}
	if s.Traffic.Load > 0 {
		s.Traffic.Rate = s.Traffic.Load * capacity / s.Traffic.Work.Mean()
	}
}

// checkConnections objects to what only requests need.
func (r *reader) checkConnections(s *Scenario) {
	const why = "it is for requests, and there is no traffic.work"
	r.ofOtherWorld(why, "traffic.load")
	for i := range s.Servers {
		r.ofOtherWorld(why, fmt.Sprintf("servers[%d].cores", i), fmt.Sprintf("servers[%d].speed", i))
	}
	for i := range s.Policies {
		r.ofOtherWorld(why, fmt.Sprintf("policies[%d].load", i))
	}
}
