package scenario

import (
	"fmt"
	"math"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

// Implementation constants: how large a scenario may be.
const (
	maxLength   = 30 * 24 * time.Hour
	maxServers  = 60_000 // those that are added later included: tables name them by 16 bits
	maxCores    = 1024
	maxRate     = 1e8 // connections per second
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

func (r *reader) scenario(root *yaml.Node, s *Scenario) {
	slots := int(s.TableSlots)
	r.Mapping(root, "", map[string]yamltree.Value{
		"title":          r.text(&s.Title),
		"length":         r.duration(&s.Length, time.Second),
		"warm_up":        r.duration(&s.WarmUp, 0),
		"load_balancers": r.whole(&s.LoadBalancers, 1, 1000),
		"table_slots":    r.whole(&slots, 0, math.MaxInt32),
		"traffic":        func(node *yaml.Node, path string) { r.traffic(node, path, &s.Traffic) },
		"servers": r.list(1000, func(node *yaml.Node, path string) {
			s.Servers = append(s.Servers, r.group(node, path, len(s.Servers)))
		}),
		"policies": r.list(maxPolicies, func(node *yaml.Node, path string) { s.Policies = append(s.Policies, r.policy(node, path)) }),
		"events":   r.list(maxEvents, func(node *yaml.Node, path string) { s.Events = append(s.Events, r.event(node, path)) }),
		"expect":   r.list(1000, func(node *yaml.Node, path string) { s.Expect = append(s.Expect, r.expectation(node, path)) }),
	})
	s.TableSlots = uint32(slots)
	for i := range s.Policies {
		p := &s.Policies[i]
		if p.Affinity == "" && !s.requests() {
			p.Affinity = "cookie"
		}
		if p.Name == "" {
			p.Name = p.name()
		}
	}
	for _, needed := range []string{"length", "servers", "traffic", "policies"} {
		if !r.Has(needed) {
			r.Fail(1, needed, "see ballast-lab sim scenario --help", "missing")
		}
	}
}

func (r *reader) group(node *yaml.Node, path string, number int) Group {
	group := Group{Name: fmt.Sprint("group-", number+1), Count: 1, Weight: 1, Cores: 1, Speed: 1}
	r.Mapping(node, path, map[string]yamltree.Value{
		"name":   r.text(&group.Name),
		"count":  r.whole(&group.Count, 1, maxServers),
		"weight": r.whole(&group.Weight, 1, model.MaxWeight),
		"cores":  r.whole(&group.Cores, 1, maxCores),
		"speed":  r.number(&group.Speed, 0.01, 100),
	})
	return group
}

func (r *reader) policy(node *yaml.Node, path string) Policy {
	p := Policy{Depth: 2, Classes: 4, Interval: 250e6, Load: "connections", Counters: 1, Candidates: model.DefaultCandidates}
	r.Mapping(node, path, map[string]yamltree.Value{
		"name":     r.text(&p.Name),
		"dispatch": r.choice(&p.Dispatch, dispatches),
		"affinity": r.choice(&p.Affinity, affinities),
		"depth":    r.whole(&p.Depth, 1, 16),
		"interval": r.duration(&p.Interval, time.Millisecond),
		"load":     r.choice(&p.Load, sources),
		"classes":  r.whole(&p.Classes, 0, 16),
		"counters": r.whole(&p.Counters, 1, maxCores),

		"candidates": r.whole(&p.Candidates, model.MinCandidates, model.MaxCandidates),
		"threshold":  r.whole(&p.Threshold, 1, 1_000_000),
	})
	return p
}

func (r *reader) event(node *yaml.Node, path string) Event {
	e := Event{Rate: -1, Speed: 0.2}
	r.Mapping(node, path, map[string]yamltree.Value{
		"at":             r.duration(&e.At, 0),
		"every":          r.duration(&e.Every, time.Millisecond),
		"until":          r.duration(&e.Until, 0),
		"group":          r.text(&e.Group),
		"remove":         r.whole(&e.Remove, 1, maxServers),
		"fail":           r.whole(&e.Fail, 1, maxServers),
		"add":            r.whole(&e.Add, 1, maxServers),
		"slow":           r.whole(&e.Slow, 1, maxServers),
		"speed":          r.number(&e.Speed, 0.01, 1),
		"rate":           r.number(&e.Rate, 0, maxRate),
		"load_balancers": r.whole(&e.LoadBalancers, 1, 1000),
	})
	return e
}

func (r *reader) expectation(node *yaml.Node, path string) Expectation {
	e := Expectation{Low: math.Inf(-1), High: math.Inf(1)}
	r.Mapping(node, path, map[string]yamltree.Value{
		"policy":   r.text(&e.Policy),
		"measure":  r.choice(&e.Measure, append(ofConnections.names(), ofRequests.names()[1:]...)), // both have broken
		"at_least": r.number(&e.Low, 0, math.MaxFloat64),
		"at_most":  r.number(&e.High, 0, math.MaxFloat64),
	})
	return e
}
