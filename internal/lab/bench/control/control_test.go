package control

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"
)

// peersVariable makes this program the child process.
const peersVariable = "BALLAST_TEST_PEERS"

func TestMain(m *testing.M) {
	if os.Getenv(peersVariable) != "" {
		if err := RunPeers(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func small(t *testing.T) Options {
	t.Setenv(peersVariable, "1")
	return Options{
		Servers: 12, LoadBalancers: 3, Rate: 10, Duration: time.Second, Events: 4, Services: 30, ServersEach: 4, Maps: os.Geteuid() == 0,
		Peers: []string{os.Args[0]}, Progress: t.Logf, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func TestASmallFleetIsMeasured(t *testing.T) {
	o := small(t)
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v %+v %+v %+v %+v", *r, *r.Applied, *r.Weighed, *r.Mass, r.Reweigh)
	if r.ControllerCPU <= 0 || r.ControllerCPU > 2*float64(os.Getpagesize()) || r.PeersCPU <= 0 || r.ControllerRSS < 1<<20 || r.JoinedMS <= 0 {
		t.Errorf("the steady part: %+v", r)
	}
	// Every agent reports at the rate, and every load balancer is told at most at the rate.
	if sent := r.ReportsPerSec; sent < 0.5*o.Rate*float64(o.Servers) || sent > 1.5*o.Rate*float64(o.Servers)+float64(2*o.LoadBalancers) {
		t.Errorf("%v reports a second", sent)
	}
	if reported := r.UpdatesPerSec; reported < 0.5*o.Rate*float64(o.LoadBalancers) || reported > 1.5*o.Rate*float64(o.LoadBalancers) {
		t.Errorf("%v updates a second", reported)
	}
	if r.BytesToLBs <= 0 || r.PacketsToLBs <= r.BytesToLBs || r.SpotlightBytes != 64*10*12*3 {
		t.Errorf("%v bytes a second, %v as packets, %v for Spotlight", r.BytesToLBs, r.PacketsToLBs, r.SpotlightBytes)
	}
	for what, l := range map[string]*Latency{"applied": r.Applied, "weighed": r.Weighed} {
		if l == nil || l.P50 <= 0 || l.P99 < l.P50 || l.Max < l.P99 {
			t.Errorf("%s: %+v", what, l)
		}
	}
	if (r.Written != nil) != o.Maps || (r.Reweigh != nil) != o.Maps || (r.Mass.LoadedMS > 0) != o.Maps || (r.Mass.WriteMS > 0) != o.Maps {
		t.Errorf("with maps %v: %+v, %+v", o.Maps, r, r.Mass)
	}
	if r.Mass.StreamsMS < r.Mass.CommittedMS/2 || r.Mass.PlanMS <= 0 {
		t.Errorf("many services: %+v", r.Mass)
	}
}

func TestNothingIsMeasuredOfNothing(t *testing.T) {
	o := small(t)
	o.Servers = 0
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("no servers were measured")
	}
}

func TestRanksAreOfTheSamples(t *testing.T) {
	var samples []float64
	for i := range 200 {
		samples = append(samples, float64(200-i))
	}
	if l := latencyOf(samples); *l != (Latency{100, 198, 200}) {
		t.Errorf("have %+v", *l)
	}
	if l := latencyOf([]float64{7}); *l != (Latency{7, 7, 7}) {
		t.Errorf("of one sample: %+v", *l)
	}
	if latencyOf(nil) != nil {
		t.Error("of no sample")
	}
}
