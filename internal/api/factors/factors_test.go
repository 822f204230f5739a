package factors

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// Promise: What a server gets is explained factor by factor, with ages; what is not known is said to be, with the reason.
func TestEachFactorSaysWhatIsKnownAndHowOldItIs(t *testing.T) {
	now := time.Unix(1e9, 0)
	seconds := func(s float64) *durationpb.Duration { return durationpb.New(time.Duration(s * float64(time.Second))) }
	for _, c := range []struct {
		what   string
		policy model.Dispatch
		source model.LoadSource
		change func(k *Known, s *ballastv1.ServerStatus)
		want   map[string]string
	}{
		{"all is known", model.DispatchAWFD, model.LoadCPU, func(*Known, *ballastv1.ServerStatus) {}, map[string]string{
			"state": "active", "health": "healthy, last reported 2.0 s ago", "weight": "2 as configured, for the size that load is compared by",
			"load": "40 % of its CPUs in use, reported 0.3 s ago", "capacity": "1.20 CPUs left", "slow start": "none is configured",
			"share": "3 of 4: about 75.0 % of new connections, decided 0.1 s ago"}},
		{"its agent is silent, load balancers are not", model.DispatchAWFD, model.LoadCPU, func(_ *Known, s *ballastv1.ServerStatus) {
			s.LoadSource, s.Load, s.LoadAge = "estimate", 7, seconds(0.9)
		}, map[string]string{"load": "about 7.0 connections open, reported 0.9 s ago; by estimate, because cpu has reported nothing of late"}},
		{"all are silent", model.DispatchAWFD, model.LoadCPU, func(_ *Known, s *ballastv1.ServerStatus) {
			s.LoadSource, s.LoadAge, s.Health, s.HealthAge = "", nil, "unknown", nil
		}, map[string]string{"load": "not known because nothing has reported it of late: the server counts as the mean of the others",
			"capacity": "not known because its load is not", "health": "not known because no load balancer has reported here how it sees it"}},
		{"a load balancer of controllers is asked", model.DispatchAWRR, model.LoadCPU, func(_ *Known, s *ballastv1.ServerStatus) {
			s.LoadSource, s.LoadAge, s.WeightAge, s.HealthAge = "", nil, nil, nil
		}, map[string]string{"load": "not known here: controllers receive it, and decide by it", "health": "healthy, not known here since when: decided elsewhere, or before",
			"share": "3 of 4: about 75.0 % of new connections"}},
		{"its host has died", model.DispatchAWFD, model.LoadCPU, func(k *Known, s *ballastv1.ServerStatus) {
			s.LoadSource, s.LoadAge, s.WeightAge, s.Health, s.HealthDetail, s.Weight = "", nil, nil, "unhealthy", "no answer (lb1)", 0
			k.Servers[1].WeightAge = seconds(0.1)
		}, map[string]string{"load": "not known because nothing has reported it of late: the server counts as the mean of the others", "share": "none: it is unhealthy"}},
		{"answers fail", model.DispatchLCF, model.LoadConnections, func(_ *Known, s *ballastv1.ServerStatus) {
			s.LoadSource, s.Kept = "connections", 0.8
		}, map[string]string{"capacity": "1.2 left, after 20 % less for answers that failed of late"}},
		{"full", model.DispatchAWFD, model.LoadCPU, func(_ *Known, s *ballastv1.ServerStatus) { s.Weight = 0 },
			map[string]string{"share": "none: nothing is left of its capacity, decided 0.1 s ago"}},
		{"unhealthy", model.DispatchAWFD, model.LoadCPU, func(_ *Known, s *ballastv1.ServerStatus) {
			s.Weight, s.Health, s.HealthDetail, s.HealthAge = 0, "unhealthy", "refused (lb1)", seconds(14)
		}, map[string]string{"health": "unhealthy: refused (lb1), last reported 14 s ago", "share": "none: it is unhealthy"}},
		{"drained", model.DispatchWRR, model.LoadConnections, func(_ *Known, s *ballastv1.ServerStatus) {
			s.Weight, s.Server.State, s.Server.Deadline = 0, "draining", timestamppb.New(now)
		}, map[string]string{"state": "draining until 2001-09-09T01:46:40Z: gets no new connections", "share": "none: it gets no new connections"}},
		{"removed", model.DispatchWRR, model.LoadConnections, func(_ *Known, s *ballastv1.ServerStatus) {
			s.Weight, s.Removed = 0, true
		}, map[string]string{"state": "removed from the configuration: gets no new connections, keeps those that it has", "health": "not checked: it is removed", "weight": "none: it is removed"}},
		{"weights are not looked at", model.DispatchRR, model.LoadConnections, func(*Known, *ballastv1.ServerStatus) {}, map[string]string{
			"weight": "2 as configured, which rr does not look at", "share": "1 of 2: 50.0 % of new connections"}},
		{"slots", model.DispatchMaglev, model.LoadConnections, func(_ *Known, s *ballastv1.ServerStatus) {
			s.LoadSource, s.WeightAge = "", nil
		}, map[string]string{"share": "3 of 4: about 75.0 % of the table's slots", "load": "not measured: maglev does not go by it"}},
		{"p2c counts by itself", model.DispatchP2C, model.LoadConnections, func(_ *Known, s *ballastv1.ServerStatus) {
			s.LoadSource, s.WeightAge = "", nil
		}, map[string]string{"load": "each load balancer compares the open connections that it counts", "share": "3 of 4: about 75.0 % of new connections where servers are alike"}},
		{"it starts", model.DispatchWRR, model.LoadConnections, func(k *Known, s *ballastv1.ServerStatus) {
			k.Service.SlowStart, s.SlowStart, s.WholeAt = model.Duration(30*time.Second), 0.3, timestamppb.New(now.Add(12*time.Second))
		}, map[string]string{"slow start": "30 % of its share at the load balancer that is furthest behind, all of it in 12 s"}},
		{"a load balancer is lost", model.DispatchWRR, model.LoadConnections, func(k *Known, _ *ballastv1.ServerStatus) { k.Lost = []string{"lb2"} },
			map[string]string{"doubt": "not connected, and may still send by older figures: lb2"}},
	} {
		s := &ballastv1.ServerStatus{Server: &ballastv1.Server{Name: "s1", Id: 1, Weight: new(uint32(2)), State: "active"}, Health: "healthy", HealthAge: seconds(2), LoadSource: "cpu",
			Load: 0.4, LoadAge: seconds(0.3), Available: 1.2, Kept: 1, Weight: 3, WeightAge: seconds(0.1)}
		service := model.NewService()
		service.Dispatch, service.Load.Source = c.policy, c.source
		k := &Known{Service: &service, Servers: []*ballastv1.ServerStatus{s, {Server: &ballastv1.Server{Id: 2}, Weight: 1}}, Now: now}
		c.change(k, s)
		have := map[string]string{}
		for _, f := range k.Of(s) {
			if have[f.Name] = f.Text; f.Text == "" || strings.Contains(f.Text, "NaN") {
				t.Errorf("%s: %s is %q", c.what, f.Name, f.Text)
			}
		}
		for name, want := range c.want {
			if have[name] != want {
				t.Errorf("%s: %s: %q, want %q", c.what, name, have[name], want)
			}
		}
		if _, doubts := have["doubt"]; doubts != (len(k.Lost) > 0) {
			t.Errorf("%s: %v", c.what, have)
		}
	}
}
