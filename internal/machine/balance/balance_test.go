package balance

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	interval = 250 * time.Millisecond
	limit    = 128 // outstanding requests: queue_limit
)

// newService has servers 1..n of weight 1.
func newService(dispatch model.Dispatch, source model.LoadSource, n int) *model.Service {
	svc := &model.Service{Name: "web", Dispatch: dispatch, Affinity: model.AffinityCookie, CookieBits: 14,
		Load: model.Load{Source: source, Interval: model.Duration(interval), Classes: 4, QueueLimit: limit}}
	for id := 1; id <= n; id++ {
		svc.Servers = append(svc.Servers, model.Server{Name: fmt.Sprint("s", id), ID: uint16(id), Weight: 1})
	}
	return svc
}

func statusOf(s *Service, at time.Time, svc *model.Service, id uint16) Status {
	server := &model.Server{ID: id, State: model.StateOff}
	if i := slices.IndexFunc(svc.Servers, func(server model.Server) bool { return server.ID == id }); i >= 0 {
		server = &svc.Servers[i]
	}
	return s.Status(at, svc, server)
}

func queue(mean float64) Report { return Report{MeanQueue: mean, HasQueue: true} }

func cpu(permille uint16) Report { return Report{CPUPermille: permille, CPUs: 1, HasCPU: true} }

func weights(shares []model.Share) (out []uint16) {
	for _, share := range shares {
		out = append(out, share.Weight)
	}
	return out
}

func expect(t *testing.T, have []model.Share, want ...uint16) {
	t.Helper()
	if !slices.Equal(weights(have), want) {
		t.Errorf("have %v, want %v", have, want)
	}
}

func TestWeightsFollowTheMeanQueueThatAgentsTell(t *testing.T) {
	for _, c := range []struct {
		dispatch model.Dispatch
		want     []uint16
	}{
		{model.DispatchAWFD, []uint16{4, 2, 1, 0}},    // floor(4 * (Q/q) / (Q/5))
		{model.DispatchLCF, []uint16{1, 0, 0, 0}},     // the shortest queue
		{model.DispatchAWRR, []uint16{16, 13, 10, 6}}, // round(10 * 18.75 / (0.5 * q + 0.5 * 18.75))
	} {
		var s Service
		for i, q := range []float64{5, 10, 20, 40} {
			s.Report(start, uint16(i+1), queue(q))
		}
		expect(t, s.Weigh(start, newService(c.dispatch, model.LoadConnections, 4)), c.want...)
	}
}

func TestWeightsFollowTheCPUAndItsSize(t *testing.T) {
	var s Service
	s.Report(start, 1, Report{HasCPU: true, CPUPermille: 500, CPUs: 4})    // 2 CPUs left
	s.Report(start, 2, Report{HasCPU: true, CPUPermille: 0, CPUs: 1})      // 1
	s.Report(start, 3, Report{HasCPU: true, CPUPermille: 500, CPUs: 1})    // 0.5
	s.Report(start, 4, Report{HasCPU: true, CPUPermille: 0, CPUs: 0.25})   // 0.25
	s.Report(start, 5, Report{HasCPU: true, CPUPermille: 1000, CPUs: 128}) // 0
	expect(t, s.Weigh(start, newService(model.DispatchAWFD, model.LoadCPU, 5)), 4, 2, 1, 0, 0)
	expect(t, s.Weigh(start, newService(model.DispatchAWRR, model.LoadCPU, 5)), 9, 20, 9, 20, 6) // by U alone: Cheetah's L
}

func TestApplicationsThatOnlyKnowTheirCPUAreWeighedByIt(t *testing.T) {
	var s Service
	for id, permille := range []uint16{200, 600} {
		s.Report(start, uint16(id+1), Report{FromEndpoint: true, HasCPU: true, CPUPermille: permille})
		s.Report(start, uint16(id+1), queue(10))
	}
	expect(t, s.Weigh(start, newService(model.DispatchAWFD, model.LoadEndpoint, 2)), 4, 2)
}

func TestWeightsOfServersCountAsTheirSize(t *testing.T) {
	var s Service
	svc := newService(model.DispatchAWFD, model.LoadConnections, 2)
	svc.Servers[1].Weight = 4
	s.Report(start, 1, queue(10))
	s.Report(start, 2, queue(40))
	expect(t, s.Weigh(start, svc), 4, 4)
	s.Report(start, 2, queue(20))
	expect(t, s.Weigh(start, svc), 2, 4)
}

func TestCapacityToldByTheApplicationCountsAsItsSize(t *testing.T) {
	var s Service
	for id, size := range []float64{limit, 2 * limit, 0} {
		s.Report(start, uint16(id+1), Report{FromEndpoint: true, HasQueue: true, MeanQueue: 10, Capacity: size})
	}
	expect(t, s.Weigh(start, newService(model.DispatchAWFD, model.LoadEndpoint, 3)), 2, 4, 2)
}

func TestAnIdlePoolGivesEqualWeights(t *testing.T) {
	for _, source := range []model.LoadSource{model.LoadConnections, model.LoadCPU, model.LoadEndpoint, model.LoadEstimate} {
		for _, dispatch := range []model.Dispatch{model.DispatchAWRR, model.DispatchAWFD, model.DispatchLCF} {
			var s Service
			for id := uint16(1); id <= 5; id++ {
				s.Report(start, id, Report{HasQueue: true, HasCPU: true, CPUs: 2, CPUPermille: 0, MeanQueue: float64(id) / 10})
				s.Report(start, id, Report{HasQueue: true, FromEndpoint: true, MeanQueue: float64(id) / 10})
				s.Seen(start, "lb1", id, Seen{Connections: 7, Closed: 7, Packets: 99})
			}
			got := weights(s.Weigh(start, newService(dispatch, source, 5)))
			if len(got) != 5 || got[0] == 0 || slices.Min(got) != slices.Max(got) {
				t.Errorf("%s by %s: %v", dispatch, source, got)
			}
		}
	}
}

// Promise: Without agents' reports the load balancers' estimate counts, and without data all weights are equal.
func TestWithoutAnyKnowledgeAllServersAreAlike(t *testing.T) {
	for _, dispatch := range []model.Dispatch{model.DispatchAWRR, model.DispatchAWFD, model.DispatchLCF} {
		var s Service
		svc := newService(dispatch, model.LoadCPU, 3)
		svc.Servers[2].Weight = 7
		got := weights(s.Weigh(start, svc))
		if got[0] == 0 || got[0] != got[1] || got[0] != got[2] {
			t.Errorf("%s: %v", dispatch, got)
		}
	}
}

func TestAServerThatNothingIsKnownOfCountsAsTheMean(t *testing.T) {
	var s Service
	s.Report(start, 1, queue(10))
	s.Report(start, 2, queue(30))
	expect(t, s.Weigh(start, newService(model.DispatchAWFD, model.LoadConnections, 3)), 4, 1, 2) // as if it had 20
}

// Promise: When an agent is silent for three intervals (1 s at least), the next source counts, scaled; values that
// only `server list` shows last three intervals of 2 s at least.
// Also held by TestWhatAnAgentSaidLongAgoIsFreshOnlyWhereNobodyDecidesByIt and
// TestSourcesThatCountDifferentThingsAreSetInProportion.
func TestAStaleSourceGivesWayToTheNext(t *testing.T) {
	var s Service
	svc := newService(model.DispatchAWFD, model.LoadEndpoint, 2)
	told := func(at time.Time, id uint16, endpoint, agent float64, open uint64) {
		if endpoint >= 0 {
			s.Report(at, id, Report{FromEndpoint: true, HasQueue: true, MeanQueue: endpoint})
		}
		if agent >= 0 {
			s.Report(at, id, queue(agent))
		}
		s.Seen(at, "lb1", id, Seen{Connections: open, Packets: 10 * open})
	}
	source := func(at time.Time) string { return statusOf(&s, at, svc, 1).Source }
	told(start, 1, 10, 20, 40)
	told(start, 2, 20, 10, 10)
	expect(t, s.Weigh(start, svc), 4, 2)
	if have := source(start); have != "endpoint" {
		t.Errorf("source is %q", have)
	}
	later := start.Add(time.Second + 1) // max(3 intervals, 1 s)
	told(later, 1, -1, 20, 40)
	told(later, 2, -1, 10, 10)
	expect(t, s.Weigh(later, svc), 2, 4)
	if have := source(later); have != "connections" {
		t.Errorf("source is %q", have)
	}
	latest := later.Add(time.Second + 1)
	told(latest, 1, -1, -1, 40)
	told(latest, 2, -1, -1, 10)
	expect(t, s.Weigh(latest, svc), 1, 4)
	if have := source(latest); have != "estimate" {
		t.Errorf("source is %q", have)
	}
	if have := source(latest.Add(time.Second + 1)); have != "" {
		t.Errorf("source is %q", have)
	}
}

func TestASourceIsFreshForThreeLongIntervals(t *testing.T) {
	var s Service
	svc := newService(model.DispatchAWFD, model.LoadConnections, 2)
	svc.Load.Interval = model.Duration(2 * time.Second)
	s.Report(start, 1, queue(10))
	s.Report(start, 2, queue(20))
	expect(t, s.Weigh(start.Add(6*time.Second), svc), 4, 2)
	expect(t, s.Weigh(start.Add(6*time.Second+1), svc), 4, 4)
}

// Agents report seldom what only people read. When somebody decides by it, what they said last must not be old.
func TestWhatAnAgentSaidLongAgoIsFreshOnlyWhereNobodyDecidesByIt(t *testing.T) {
	for _, c := range []struct {
		name     string
		dispatch model.Dispatch
		state    model.ServerState
		exact    bool
	}{
		{"people", model.DispatchHash, model.StateActive, true},
		{"a policy", model.DispatchAWFD, model.StateActive, false},
		{"the end of a drain", model.DispatchHash, model.StateDraining, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s Service
			svc := newService(model.DispatchHash, model.LoadConnections, 2)
			s.Report(start, 1, queue(10))
			svc.Dispatch, svc.Servers[0].State = c.dispatch, c.state
			have := statusOf(&s, start.Add(3*time.Duration(model.IdleLoadInterval)), svc, 1)
			if have.Exact != c.exact || (have.Source == "connections") != c.exact {
				t.Errorf("have %+v", have)
			}
			if late := statusOf(&s, start.Add(3*time.Duration(model.IdleLoadInterval)+1), svc, 1); late.Exact || late.Source != "" {
				t.Errorf("later: %+v", late)
			}
		})
	}
}

// Ten open connections of which one request is outstanding are no more load than one outstanding request.
func TestSourcesThatCountDifferentThingsAreSetInProportion(t *testing.T) {
	var s Service
	for id, open := range []uint64{100, 200, 400} {
		s.Seen(start, "lb1", uint16(id+1), Seen{Connections: open, Packets: 10 * open})
		if id < 2 {
			s.Report(start, uint16(id+1), Report{FromEndpoint: true, HasQueue: true, MeanQueue: float64(open) / 10})
		}
	}
	expect(t, s.Weigh(start, newService(model.DispatchAWFD, model.LoadEndpoint, 3)), 4, 2, 1)
}

func TestServersWithoutCPUReportsAreComparedByTheirConnections(t *testing.T) {
	var s Service
	for id, permille := range []uint16{250, 500, 0} {
		told := cpu(permille)
		told.HasCPU = id < 2
		told.HasQueue, told.MeanQueue = true, []float64{10, 20, 30}[id]
		s.Report(start, uint16(id+1), told)
	}
	expect(t, s.Weigh(start, newService(model.DispatchAWFD, model.LoadCPU, 3)), 4, 2, 1) // 0.75, 0.5 and, as 0.75 is in use, 0.25
}

func TestServersThatTakeNoNewConnectionsNeverAppear(t *testing.T) {
	svc := newService(model.DispatchAWFD, model.LoadConnections, 4)
	svc.Servers[0].State, svc.Servers[1].State, svc.Servers[2].Weight = model.StateDraining, model.StateOff, 0
	var s Service
	for id := uint16(1); id <= 5; id++ {
		s.Report(start, id, queue(float64(id)))
	}
	shares := s.Weigh(start, svc)
	if len(shares) != 1 || shares[0].ID != 4 || shares[0].Weight == 0 {
		t.Errorf("have %v", shares)
	}
	if have := statusOf(&s, start, svc, 1).Weight; have != 0 {
		t.Errorf("a draining server has weight %d", have)
	}
}

func TestPoliciesThatDoNotFollowLoadHaveNoWeights(t *testing.T) {
	var s Service
	s.Report(start, 1, queue(10))
	if have := s.Weigh(start, newService(model.DispatchRR, model.LoadConnections, 2)); have != nil {
		t.Errorf("have %v", have)
	}
	if have := statusOf(&s, start, newService(model.DispatchRR, model.LoadConnections, 2), 1); have.Weight != 1 || have.Load != 10 {
		t.Errorf("have %+v", have)
	}
}

// Promise: A server that fails requests fast loses weight by a penalty that decays.
// Also held by TestAServerThatFailedIsTriedAgain.
func TestAServerThatFailsFastLosesWeight(t *testing.T) {
	for _, dispatch := range []model.Dispatch{model.DispatchAWRR, model.DispatchAWFD, model.DispatchLCF} {
		var s Service
		svc := newService(dispatch, model.LoadEndpoint, 4)
		for id := uint16(1); id <= 4; id++ {
			s.Report(start, id, Report{FromEndpoint: true, HasQueue: true, MeanQueue: 20, Answered: 1000})
		}
		before := weights(s.Weigh(start, svc))
		now := start.Add(interval)
		for id := uint16(2); id <= 4; id++ {
			s.Report(now, id, Report{FromEndpoint: true, HasQueue: true, MeanQueue: 20, Answered: 1000})
		}
		s.Report(now, 1, Report{FromEndpoint: true, HasQueue: true, MeanQueue: 0, Answered: 10, Failed: 5000})
		after := weights(s.Weigh(now, svc))
		if after[0] >= before[0] || after[0] >= after[1] {
			t.Errorf("%s: %v, then %v", dispatch, before, after)
		}
	}
}

func TestAServerThatFailedIsTriedAgain(t *testing.T) {
	var s Service
	svc := newService(model.DispatchAWFD, model.LoadEndpoint, 2)
	s.Report(start, 1, Report{FromEndpoint: true, HasQueue: true, Failed: 1000})
	s.Report(start, 2, Report{FromEndpoint: true, HasQueue: true, MeanQueue: 1})
	expect(t, s.Weigh(start, svc), 0, 4)
	later := start.Add(30 * time.Second)
	s.Report(later, 1, Report{FromEndpoint: true, HasQueue: true})
	s.Report(later, 2, Report{FromEndpoint: true, HasQueue: true, MeanQueue: 4})
	expect(t, s.Weigh(later, svc), 4, 1)
}

func TestOneFailingServerDoesNotHideHowTheOthersDiffer(t *testing.T) {
	var s Service
	s.Report(start, 1, Report{FromEndpoint: true, HasQueue: true, Failed: math.MaxUint64})
	for id := uint16(2); id <= 9; id++ {
		s.Report(start, id, Report{FromEndpoint: true, HasQueue: true, MeanQueue: 10})
	}
	s.Report(start, 10, Report{FromEndpoint: true, HasQueue: true, MeanQueue: 40})
	got := weights(s.Weigh(start, newService(model.DispatchAWRR, model.LoadEndpoint, 10)))
	if got[0] > 5 || got[9] > 9 || got[1] < 12 {
		t.Errorf("have %v", got)
	}
}

func BenchmarkWeighThousandServers(b *testing.B) {
	var s Service
	svc := newService(model.DispatchAWFD, model.LoadConnections, 1000)
	for id := uint16(1); id <= 1000; id++ {
		s.Report(start, id, queue(float64(id%50)))
		s.Seen(start, "lb1", id, Seen{Connections: 100})
	}
	for b.Loop() {
		if shares := s.Weigh(start, svc); len(shares) != 1000 {
			b.Fatal(len(shares))
		}
	}
}

// Promise: A load has the time when it was told, which stands still while reports are lost, until another source or none is left.
func TestLoadsHaveTheTimeWhenTheyWereTold(t *testing.T) {
	var s Service
	svc := newService(model.DispatchAWFD, model.LoadConnections, 2)
	told := start.Add(time.Second)
	s.Report(told, 1, queue(5))
	s.Weigh(told, svc)
	within := told.Add(900 * time.Millisecond) // all reports since are lost
	s.Seen(within, "lb1", 1, Seen{Connections: 9})
	if have := statusOf(&s, within, svc, 1); have.Source != "connections" || !have.At.Equal(told) || have.Kept != 1 {
		t.Errorf("%+v, told at %v", have, told)
	}
	if have := statusOf(&s, within, svc, 1); !have.Weighed.Equal(told) {
		t.Errorf("decided at %v, not %v", have.Weighed, told)
	}
	later := told.Add(1500 * time.Millisecond)
	if have := statusOf(&s, later, svc, 1); have.Source != "estimate" || !have.At.Equal(within) {
		t.Errorf("%+v, seen at %v", have, within)
	}
	if have := statusOf(&s, later.Add(time.Minute), svc, 1); have.Source != "" || !have.At.IsZero() {
		t.Errorf("all are silent: %+v", have)
	}
}
