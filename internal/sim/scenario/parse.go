package scenario

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

// Implementation constants: how large a scenario may be.
const (
	maxLength   = 30 * 24 * time.Hour
	maxServers  = 60_000 // those that are added later included: tables name them by 16 bits
	maxRate     = 1e8    // connections per second
	maxPolicies = 20
	maxEvents   = 1000 // lines; those that repeat happen more often
)

// Opener returns the content of a file that a scenario names.
type Opener func(name string) ([]byte, error)

// Parse reads a scenario and everything that it names. name is used in errors only. The error is nil or joined (errors.Join) from
// *Error in the order of the lines.
func Parse(name string, text []byte, open Opener) (*Scenario, error) {
	r := newReader(name, open)
	s := &Scenario{Title: name, LoadBalancers: 1, TableSlots: model.DefaultSlots}
	if root := r.Parse(text); root != nil {
		r.scenario(root, s)
	}
	if r.Failed() == 0 {
		r.check(s)
	}
	if r.Failed() > 0 {
		return nil, r.joined()
	}
	return s, nil
}

func (r *reader) scenario(root ast.Node, s *Scenario) {
	slots := int(s.TableSlots)
	r.Mapping(root, "", map[string]yamltree.Value{
		"title":          r.text(&s.Title),
		"length":         r.duration(&s.Length, time.Second),
		"warm_up":        r.duration(&s.WarmUp, 0),
		"load_balancers": r.whole(&s.LoadBalancers, 1, 1000),
		"table_slots":    r.whole(&slots, 0, math.MaxInt32),
		"traffic":        func(node ast.Node, path string) { r.traffic(node, path, &s.Traffic) },
		"servers": r.list(1000, func(node ast.Node, path string) {
			s.Servers = append(s.Servers, r.group(node, path, len(s.Servers)))
		}),
		"policies": r.list(maxPolicies, func(node ast.Node, path string) { s.Policies = append(s.Policies, r.policy(node, path)) }),
		"events":   r.list(maxEvents, func(node ast.Node, path string) { s.Events = append(s.Events, r.event(node, path)) }),
		"expect":   r.list(1000, func(node ast.Node, path string) { s.Expect = append(s.Expect, r.expectation(node, path)) }),
	})
	s.TableSlots = uint32(slots)
	for _, needed := range []string{"length", "servers", "traffic", "policies"} {
		if !r.Has(needed) {
			r.Fail(1, needed, "see docs/simulator.md", "missing")
		}
	}
}

func (r *reader) group(node ast.Node, path string, number int) Group {
	group := Group{Name: fmt.Sprint("group-", number+1), Count: 1, Weight: 1}
	r.Mapping(node, path, map[string]yamltree.Value{
		"name":   r.text(&group.Name),
		"count":  r.whole(&group.Count, 1, maxServers),
		"weight": r.whole(&group.Weight, 1, model.MaxWeight),
	})
	return group
}

func (r *reader) policy(node ast.Node, path string) Policy {
	p := Policy{Affinity: "cookie", Depth: 2, Classes: 4, Interval: 250e6}
	r.Mapping(node, path, map[string]yamltree.Value{
		"name":     r.text(&p.Name),
		"dispatch": r.choice(&p.Dispatch, dispatches),
		"affinity": r.choice(&p.Affinity, affinities),
		"depth":    r.whole(&p.Depth, 2, 16),
		"interval": r.duration(&p.Interval, time.Millisecond),
		"classes":  r.whole(&p.Classes, 0, 16),
	})
	if p.Name == "" {
		p.Name = p.name()
	}
	return p
}

func (r *reader) event(node ast.Node, path string) Event {
	e := Event{Rate: -1}
	r.Mapping(node, path, map[string]yamltree.Value{
		"at":             r.duration(&e.At, 0),
		"every":          r.duration(&e.Every, time.Millisecond),
		"until":          r.duration(&e.Until, 0),
		"group":          r.text(&e.Group),
		"remove":         r.whole(&e.Remove, 1, maxServers),
		"fail":           r.whole(&e.Fail, 1, maxServers),
		"add":            r.whole(&e.Add, 1, maxServers),
		"rate":           r.number(&e.Rate, 0, maxRate),
		"load_balancers": r.whole(&e.LoadBalancers, 1, 1000),
	})
	return e
}

func (r *reader) expectation(node ast.Node, path string) Expectation {
	e := Expectation{Low: math.Inf(-1), High: math.Inf(1)}
	r.Mapping(node, path, map[string]yamltree.Value{
		"policy":   r.text(&e.Policy),
		"measure":  r.choice(&e.Measure, measureNames()),
		"at_least": r.number(&e.Low, 0, math.MaxFloat64),
		"at_most":  r.number(&e.High, 0, math.MaxFloat64),
	})
	return e
}

// check objects to what is wrong although every value by itself is right.
func (r *reader) check(s *Scenario) {
	if !slices.Contains(model.TableSizes(), s.TableSlots) {
		r.FailAt("table_slots", fmt.Sprint("use one of ", model.TableSizes()), "%d is none of them", s.TableSlots)
	}
	r.checkGroups(s)
	for i := range s.Events {
		r.checkEvent(s, i)
	}
	if n := s.mostServers(); n > maxServers {
		r.FailAt("events", fmt.Sprintf("add fewer: at most %d altogether", maxServers), "up to %d servers", n)
	}
	for i, p := range s.Policies {
		r.checkPolicy(s, p, fmt.Sprintf("policies[%d]", i))
		if slices.ContainsFunc(s.Policies[:i], func(other Policy) bool { return other.Name == p.Name }) {
			r.FailAt(fmt.Sprintf("policies[%d]", i), "give it another name", "a second policy %q", p.Name)
		}
	}
	for i, e := range s.Expect {
		path := fmt.Sprintf("expect[%d]", i)
		if e.Policy != "" && !slices.ContainsFunc(s.Policies, func(p Policy) bool { return p.Name == e.Policy }) {
			r.FailAt(path+".policy", "use the name of a policy", "there is none called %q", e.Policy)
		}
		if e.Measure == "" || e.Low > e.High {
			r.FailAt(path, "give measure, and at_least or at_most", "nothing can be judged by this")
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
	if e.Remove+e.Fail+e.Add+e.LoadBalancers == 0 && e.Rate < 0 {
		r.FailAt(path, "give remove, fail, add, rate or load_balancers", "nothing happens")
	}
	if e.Rate >= 0 && s.Traffic.Trace != nil {
		r.FailAt(path+".rate", "remove it", "a trace says itself when connections begin")
	}
}

func (r *reader) checkPolicy(s *Scenario, p Policy, path string) {
	given := func(key string) bool { return r.Has(path + "." + key) }
	if p.Dispatch == "" {
		r.FailAt(path, "give dispatch", "it does not say who gets new connections")
		return
	}
	if p.Affinity != "cookie" && !p.usesTable() {
		r.FailAt(path+".affinity", "use dispatch maglev, hash or wcmp, or affinity cookie", "%s finds no server again: it is no table", p.Dispatch)
	}
	if given("depth") && p.Affinity != "history" {
		r.FailAt(path+".depth", "remove it", "only affinity history has one")
	}
	if given("interval") && !slices.Contains(byReport, p.Dispatch) {
		r.FailAt(path+".interval", "remove it", "%s follows no reports", p.Dispatch)
	}
	if given("classes") && p.Dispatch != "awfd" {
		r.FailAt(path+".classes", "remove it", "only awfd has them")
	}
	if slices.Contains(byRounds, p.Dispatch) && s.mostServers() > model.MaxRoundServers {
		r.FailAt(path+".dispatch", "use another policy, or fewer servers", "%d servers, a round has at most %d turns", s.mostServers(), model.MaxRoundServers)
	}
}
