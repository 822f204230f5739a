package balance

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

func open(s *Service) uint64 {
	return *statusOf(s, start, newService(model.DispatchAWFD, model.LoadEstimate, 1), 1).Connections
}

func TestConnectionsThatEndAtAnotherLoadBalancerAreNotOpen(t *testing.T) {
	var s Service
	s.Seen(start, "lb1", 1, Seen{Connections: 10})
	s.Seen(start, "lb2", 1, Seen{})
	s.Seen(start, "lb2", 1, Seen{Closed: 7})
	if have := open(&s); have != 3 {
		t.Errorf("%d open, want 3", have)
	}
}

func TestARestartedLoadBalancerBeginsAtZero(t *testing.T) {
	var s Service
	s.Seen(start, "lb1", 1, Seen{Connections: 100, Closed: 90})
	s.Seen(start, "lb1", 1, Seen{Connections: 5, Closed: 8}) // 3 of the 10 that lived have ended
	if have := open(&s); have != 7 {
		t.Errorf("%d open, want 7", have)
	}
}

func TestEndsOfWhatNobodyHasHeardOfDoNotCount(t *testing.T) {
	var s Service
	s.Seen(start, "lb2", 1, Seen{Connections: 10, Closed: 500}) // of those that a load balancer before dispatched
	s.Seen(start, "lb2", 1, Seen{Connections: 14, Closed: 501})
	if have := open(&s); have != 3 {
		t.Errorf("%d open, want 3", have)
	}
}

// An end may be reported before the beginning: that must not add up.
func TestTheOrderOfReportsDoesNotMatterInTheEnd(t *testing.T) {
	var s Service
	s.Seen(start, "lb1", 1, Seen{})
	s.Seen(start, "lb2", 1, Seen{})
	for i := uint64(1); i <= 100; i++ {
		s.Seen(start, "lb2", 1, Seen{Closed: i})
		if have := open(&s); have != 0 {
			t.Fatalf("%d open after %d ended", have, i)
		}
		s.Seen(start, "lb1", 1, Seen{Connections: i})
	}
	if have := open(&s); have != 0 {
		t.Errorf("%d open, want none", have)
	}
}

func TestASilentLoadBalancersConnectionsGoOnThroughTheOthers(t *testing.T) {
	var s Service
	s.Seen(start, "lb1", 1, Seen{Connections: 100})
	s.Seen(start, "lb2", 1, Seen{Connections: 100})
	now := start.Add(staleAtLeast * 2)
	s.Seen(now, "lb2", 1, Seen{Connections: 100, Closed: 150}) // 50 of lb1's among them
	svc := newService(model.DispatchAWFD, model.LoadEstimate, 1)
	if have := statusOf(&s, now, svc, 1); *have.Connections != 50 || have.Source != "estimate" {
		t.Errorf("have %+v", have)
	}
}

// Load balancers say again what has not changed every 10 s only.
func TestIdleConnectionsAreLeftWithEveryPolicyAndWhatNobodyReportsIsNotKnown(t *testing.T) {
	for _, dispatch := range []model.Dispatch{model.DispatchP2C, model.DispatchLeast, model.DispatchRR} {
		var s Service
		svc := newService(dispatch, model.LoadConnections, 1)
		if have := statusOf(&s, start, svc, 1); have.Connections != nil {
			t.Errorf("%s: %d open before anybody has said anything", dispatch, *have.Connections)
		}
		s.Seen(start, "lb1", 1, Seen{Connections: 10, Closed: 4})
		if have := statusOf(&s, start.Add(10*time.Second), svc, 1); have.Connections == nil || *have.Connections != 6 || have.Exact {
			t.Errorf("%s: have %+v without an agent, want about 6 connections", dispatch, have)
		}
		if have := statusOf(&s, start.Add(time.Minute), svc, 1); have.Connections != nil {
			t.Errorf("%s: %d open, which nobody has reported for a minute", dispatch, *have.Connections)
		}
	}
}

// Promise: Where the agent that has counted connections is silent, their number is not known: its last count is told with its age, and an estimate only of who drains.
func TestAnEstimateIsNotTheCountOfAnAgentThatIsSilent(t *testing.T) {
	var s Service
	svc := newService(model.DispatchRR, model.LoadConnections, 1)
	s.Seen(start, "lb1", 1, Seen{Connections: 10, Closed: 1})
	s.Report(start, 1, Report{HasQueue: true, Connections: 5, AcceptQueue: 1})
	if have := statusOf(&s, start, svc, 1); have.Connections == nil || *have.Connections != 6 || !have.Exact || !have.Counted.IsZero() {
		t.Errorf("while it speaks: %+v", have)
	}
	now := start.Add(20 * time.Second)
	s.Seen(now, "lb1", 1, Seen{Connections: 12, Closed: 1})
	for range 2 {
		if have := statusOf(&s, now, svc, 1); have.Connections != nil || have.Before != 6 || !have.Counted.Equal(start) {
			t.Errorf("while it is silent: %+v", have)
		}
	}
	svc.Servers[0].State = model.StateDraining
	if have := statusOf(&s, now, svc, 1); have.Connections == nil || *have.Connections != 11 || have.Exact || !have.Counted.IsZero() {
		t.Errorf("while it drains: %+v", have)
	}
	svc.Servers[0].State = model.StateActive
	s.Report(now, 1, Report{HasQueue: true, Connections: 2})
	if have := statusOf(&s, now, svc, 1); have.Connections == nil || *have.Connections != 2 || !have.Exact || !have.Counted.IsZero() {
		t.Errorf("once it speaks again: %+v", have)
	}
}

func TestAServerThatRefusesConnectionsLosesWeight(t *testing.T) {
	var s Service
	svc := newService(model.DispatchAWFD, model.LoadConnections, 2)
	for id := uint16(1); id <= 2; id++ {
		s.Report(start, id, queue(10))
		s.Seen(start, "lb1", id, Seen{Connections: 1e6, Closed: 1e6, Packets: 8e6})
	}
	expect(t, s.Weigh(start, svc), 4, 4)
	now := start.Add(interval)
	s.Report(now, 1, queue(0)) // no connection gets as far as the agent's socket tables
	s.Report(now, 2, queue(10))
	s.Seen(now, "lb1", 1, Seen{Connections: 1e6 + 100, Closed: 1e6, Packets: 8e6 + 100})
	s.Seen(now, "lb1", 2, Seen{Connections: 1e6 + 100, Closed: 1e6 + 100, Packets: 8e6 + 600})
	expect(t, s.Weigh(now, svc), 0, 4)
}

func TestAgentsCountExactly(t *testing.T) {
	var s Service
	svc := newService(model.DispatchRR, model.LoadConnections, 1)
	s.Seen(start, "lb1", 1, Seen{Connections: 100})
	s.Report(start, 1, Report{HasQueue: true, Connections: 40, AcceptQueue: 2, MeanQueue: 41})
	if have := statusOf(&s, start, svc, 1); *have.Connections != 42 || !have.Exact || have.Load != 41 {
		t.Errorf("have %+v", have)
	}
	svc.Servers = nil // removed, its connections have not ended
	if have := statusOf(&s, start, svc, 1); *have.Connections != 42 || have.Weight != 0 {
		t.Errorf("have %+v", have)
	}
}

func TestWhatHasLeftIsForgotten(t *testing.T) {
	var s Service
	s.Report(start, 1, queue(1))
	s.Report(start, 2, Report{FromEndpoint: true})
	s.Seen(start, "lb1", 3, Seen{})
	s.Weigh(start.Add(forgetAfter+1), newService(model.DispatchAWFD, model.LoadEstimate, 0))
	if len(s.agents)+len(s.endpoints)+len(s.traffic) != 0 {
		t.Errorf("still there: %v %v %v", s.agents, s.endpoints, s.traffic)
	}
}

// Whatever is reported by whom, in whatever order servers are listed: weights are sound and the same.
//
// Promise: Impossible reports (NaN, negative, about foreign servers) are ignored, and weights stay in their
// bounds.
// Also held by TestAnAgentSpeaksOnlyForServersOfItsCertificate.
func TestWeightsAreSoundWhateverIsReported(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dispatch := rapid.SampledFrom([]model.Dispatch{model.DispatchAWRR, model.DispatchAWFD, model.DispatchLCF}).Draw(t, "dispatch")
		source := rapid.SampledFrom([]model.LoadSource{model.LoadEstimate, model.LoadConnections, model.LoadCPU, model.LoadEndpoint}).Draw(t, "source")
		svc := newService(dispatch, source, rapid.IntRange(1, 6).Draw(t, "servers"))
		svc.Load.Classes = rapid.Uint8Range(0, model.MaxClasses).Draw(t, "classes")
		svc.Load.QueueLimit = rapid.Uint32().Draw(t, "limit")
		for i := range svc.Servers {
			svc.Servers[i].Weight = rapid.Uint16Range(0, model.MaxWeight).Draw(t, "weight")
			svc.Servers[i].State = rapid.SampledFrom([]model.ServerState{model.StateActive, model.StateActive, model.StateDraining, model.StateOff}).Draw(t, "state")
		}
		var s Service
		now := start
		for range rapid.IntRange(0, 40).Draw(t, "reports") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond}).Draw(t, "later"))
			anyReport(t, &s, now)
		}
		shares := s.Weigh(now, svc)
		takes := svc.Shares()
		if len(shares) != len(takes) {
			t.Fatalf("%d shares for %d servers that take new connections", len(shares), len(takes))
		}
		sum := 0
		for i, share := range shares {
			if share.ID != takes[i].ID {
				t.Fatalf("server %d, want %d", share.ID, takes[i].ID)
			}
			sum += int(share.Weight)
			status := statusOf(&s, now, svc, share.ID)
			if !sound(status.Load) || !sound(status.Available) || status.Weight != share.Weight {
				t.Fatalf("status %+v of weight %d", status, share.Weight)
			}
		}
		if len(shares) > 0 && sum == 0 {
			t.Fatalf("nobody gets anything: %v", shares)
		}
		svc.Servers = rapid.Permutation(svc.Servers).Draw(t, "order")
		if again := s.Weigh(now, svc); !slices.Equal(again, shares) {
			t.Fatalf("in another order %v instead of %v", again, shares)
		}
	})
}

func sound(x float64) bool { return x >= 0 && !math.IsInf(x, 0) } // NaN is not >= 0

func anyReport(t *rapid.T, s *Service, now time.Time) {
	id := rapid.Uint16Range(1, 6).Draw(t, "id")
	if rapid.Bool().Draw(t, "told") {
		s.Report(now, id, Report{
			Connections: rapid.Uint32().Draw(t, "connections"), AcceptQueue: rapid.Uint32().Draw(t, "waiting"),
			MeanQueue: rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, 3, math.NaN(), math.Inf(1), -1})).Draw(t, "queue"),
			HasQueue:  rapid.Bool().Draw(t, "has queue"), HasCPU: rapid.Bool().Draw(t, "has CPU"), FromEndpoint: rapid.Bool().Draw(t, "endpoint"),
			CPUPermille: rapid.Uint16().Draw(t, "CPU"), CPUs: rapid.Float64().Draw(t, "CPUs"), Capacity: rapid.Float64().Draw(t, "capacity"),
			Answered: rapid.Uint64().Draw(t, "answered"), Failed: rapid.Uint64().Draw(t, "failed"),
		})
		return
	}
	s.Seen(now, rapid.SampledFrom([]string{"lb1", "lb2"}).Draw(t, "lb"), id, Seen{
		Connections: rapid.Uint64().Draw(t, "begun"), Closed: rapid.Uint64().Draw(t, "ended"),
		Packets: rapid.Uint64().Draw(t, "packets"),
	})
}

// Promise: With `load.source: packets` or `bytes` the load of a server is the rate of all load balancers together.
func TestRatesOfAllLoadBalancersAddUp(t *testing.T) {
	for source, want := range map[model.LoadSource]float64{model.LoadPackets: 160, model.LoadBytes: 160_000} {
		var s Service
		svc := newService(model.DispatchAWRR, source, 2)
		now := start
		for n := range uint64(40) {
			s.Seen(now, "lb1", 1, Seen{Packets: 10 * n, Bytes: 10_000 * n})
			s.Seen(now, "lb2", 1, Seen{Packets: 30 * n, Bytes: 30_000 * n})
			s.Seen(now, "lb2", 2, Seen{Packets: 20 * n, Bytes: 20_000 * n})
			s.Weigh(now, svc)
			now = now.Add(interval)
		}
		for id, load := range map[uint16]float64{1: want, 2: want / 2} {
			if have := statusOf(&s, now, svc, id); have.Source != source.String() || math.Abs(have.Load/load-1) > 0.4 {
				t.Errorf("server %d: load is %.0f by %s, want %.0f a second", id, have.Load, have.Source, load)
			}
		}
		expect(t, s.Weigh(now, svc), 9, 12)
	}
}

// A connection between load balancer and controller that stalls delivers reports together.
func TestARateDoesNotJumpWhenReportsArriveTogether(t *testing.T) {
	var s Service
	svc := newService(model.DispatchAWRR, model.LoadBytes, 1)
	load := func(now time.Time) float64 { s.Weigh(now, svc); return statusOf(&s, now, svc, 1).Load }
	now := start
	for n := range uint64(40) {
		s.Seen(now, "lb1", 1, Seen{Packets: n, Bytes: 1000 * n})
		load(now)
		now = now.Add(interval)
	}
	before := load(now)
	now = now.Add(interval)
	for n := range uint64(2) {
		s.Seen(now, "lb1", 1, Seen{Packets: 40 + n, Bytes: 1000 * (40 + n)})
	}
	if have := load(now); have > 3*before {
		t.Errorf("a rate of %.0f became %.0f", before, have)
	}
}

func TestARateFallsToNothingWhenNothingIsSentAndIsUnknownWhenNobodyReports(t *testing.T) {
	var s Service
	svc := newService(model.DispatchAWRR, model.LoadPackets, 3)
	s.Seen(start, "lb1", 1, Seen{})
	s.Seen(start, "lb1", 2, Seen{})
	s.Weigh(start, svc)
	s.Seen(start.Add(interval), "lb1", 1, Seen{Packets: 1000})
	expect(t, s.Weigh(start.Add(interval), svc), 7, 20, 10) // nothing is known of the third
	idle := start.Add(10 * time.Second)
	expect(t, s.Weigh(idle, svc), 10, 10, 10)
	if have := statusOf(&s, idle, svc, 1); have.Source != "packets" || have.Load > 0.01 {
		t.Errorf("an idle server has %+v", have)
	}
	gone := start.Add(seenFor + time.Second)
	if have := statusOf(&s, gone, svc, 1); have.Source != "" {
		t.Errorf("of a server that nobody reports on: %+v", have)
	}
}

func TestARestartedLoadBalancersRateIsOfWhatItHasSentSince(t *testing.T) {
	var s Service
	svc := newService(model.DispatchAWRR, model.LoadBytes, 1)
	s.Weigh(start, svc)
	s.Seen(start, "lb1", 1, Seen{Packets: 1e9, Bytes: 1e12})
	s.Seen(start.Add(interval), "lb1", 1, Seen{Packets: 2, Bytes: 3000})
	if have := statusOf(&s, start.Add(interval), svc, 1).Load; have < 3000 || have > 12000 {
		t.Errorf("3000 bytes in an interval are %.0f a second", have)
	}
}
