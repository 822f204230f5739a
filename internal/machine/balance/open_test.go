package balance

import (
	"maps"
	"math"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

func TestCountsAreOfAgentsThatReportedOfLate(t *testing.T) {
	var s Service
	svc := newService(model.DispatchLeast, model.LoadConnections, 3)
	s.Report(start, 1, Report{HasQueue: true, Connections: 7, AcceptQueue: 2})
	s.Report(start.Add(time.Minute), 2, Report{HasQueue: true, Connections: 4})
	s.Report(start.Add(time.Minute), 3, Report{HasCPU: true, CPUs: 1})
	if have := s.Counts(start, svc); have[1] != 9 {
		t.Errorf("counts %v", have)
	}
	if have := s.Counts(start.Add(time.Minute), svc); !maps.Equal(have, map[uint16]uint32{2: 4}) {
		t.Errorf("a minute later: counts %v", have)
	}
}

func TestSharesAreThoseOfTheConnectionsOfLateAndAddUpToOne(t *testing.T) {
	var s Service
	for i := range uint64(60) {
		now := start.Add(time.Duration(i) * time.Second)
		for id := uint16(1); id <= 2; id++ {
			s.Seen(now, "lb1", id, Seen{Connections: 30 * i, Closed: 1 << 40})
			s.Seen(now, "lb2", id, Seen{Connections: 10 * i})
			s.Seen(now, "lb3", id, Seen{Connections: 1 << 30}) // long ago
		}
	}
	have := s.Shares(start.Add(time.Minute))
	for lb, want := range map[string]float64{"lb1": 0.75, "lb2": 0.25, "lb3": 0} {
		if math.Abs(have[lb]-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", lb, have[lb], want)
		}
	}
	if have := s.Shares(start.Add(time.Hour)); len(have) != 0 {
		t.Errorf("of load balancers that are silent: %v", have)
	}
}

func TestSharesAreEqualWhereNobodyDispatches(t *testing.T) {
	var s Service
	for _, lb := range []string{"lb1", "lb2", "lb3", "lb4"} {
		s.Seen(start, lb, 1, Seen{Connections: 5})
	}
	for lb, share := range s.Shares(start) {
		if share != 0.25 {
			t.Errorf("%s: %v", lb, share)
		}
	}
}

func TestWhatLoadBalancersChooseByIsShownWhereNoAgentCounts(t *testing.T) {
	var s Service
	svc := newService(model.DispatchLeast, model.LoadConnections, 1)
	s.Seen(start, "lb1", 1, Seen{Connections: 1000, Estimate: new(uint32(3))})
	s.Seen(start, "lb2", 1, Seen{Connections: 1000, Estimate: new(uint32(4))})
	status := statusOf(&s, start, svc, 1)
	if status.Exact || *status.Connections != 7 {
		t.Errorf("%d, exact: %t; want an estimate of 7", *status.Connections, status.Exact)
	}
	svc.Servers[0].State = model.StateDraining
	if status = statusOf(&s, start, svc, 1); status.Exact || *status.Connections != 2000 {
		t.Errorf("draining: %d, exact: %t; want all that did not end", *status.Connections, status.Exact)
	}
	s.Report(start, 1, Report{HasQueue: true, Connections: 2})
	if status = statusOf(&s, start, svc, 1); !status.Exact || *status.Connections != 2 {
		t.Errorf("%d, exact: %t; want a count of 2", *status.Connections, status.Exact)
	}
}

func TestAServerThatRisesCountsAsTheMeanOfTheOthers(t *testing.T) {
	var s Service
	svc := newService(model.DispatchAWFD, model.LoadEstimate, 3)
	svc.Servers[2].Weight = 3
	for id, open := range map[uint16]uint64{1: 2000, 2: 10, 3: 30} {
		s.Seen(start, "lb1", id, Seen{Connections: open})
	}
	s.Rose(svc, 1)
	if have := *statusOf(&s, start, svc, 1).Connections; have != 10 {
		t.Errorf("%d open, want 10", have)
	}
}
