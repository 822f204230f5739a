package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/pace"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

func TestAPromiseIsBrokenOnlyByWhatWasSeen(t *testing.T) {
	silent := &url.Error{Op: "Get", URL: "http://ballast/v1/status", Err: context.DeadlineExceeded}
	for name, one := range map[string]struct {
		failures []string
		err      error
		want     Outcome
	}{
		"the end, nothing failed":              {nil, nil, PromiseKept},
		"the end, something failed":            {[]string{"3 of 5 connections broken"}, nil, PromiseBroken},
		"not root":                             {nil, errors.New("not root"), NotRun},
		"connections broke, then a time-out":   {[]string{"3 of 5 connections broken"}, silent, PromiseBroken},
		"a time-out alone":                     {nil, fmt.Errorf("trial: %w", errors.New("not within 1s")), NotRun},
		"a daemon that had been ready died":    {nil, fmt.Errorf("trial: %w", errors.Join(errors.New("a"), world.Broken(errors.New("it died")))), PromiseBroken},
		"interrupted":                          {nil, context.Canceled, NotRun},
		"the time of the whole scenario is up": {nil, pace.ErrOutOfTime, NotRun},
	} {
		r := Result{Failures: one.failures}
		err := r.conclude(one.err)
		if r.Outcome != one.want || r.Kept != (one.want == PromiseKept) || (err != nil) != (one.want == NotRun) || (one.err != nil && r.Error == "" && len(r.Failures) == 0) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestCompletionsCountWhatCameAndWhatEnded(t *testing.T) {
	begin := time.Unix(1000, 0)
	connection := func(flow string, started, ended time.Duration, class traffic.Class) traffic.Connection {
		return traffic.Connection{Flow: flow, Class: class, Bytes: 100, Started: begin.Add(started), Ended: begin.Add(ended)}
	}
	const ms, second = time.Millisecond, time.Second
	got := Complete([]traffic.Connection{
		connection("a", -second, 100*ms, traffic.Completed), // came before: counts as throughput only
		connection("a", 0, 100*ms, traffic.Completed),
		connection("a", second, 1300*ms, traffic.Completed),
		connection("a", 1900*ms, 2700*ms, traffic.Completed), // ended after: counts as time only
		connection("a", second, 1100*ms, traffic.Reset),
		connection("b", second, 1100*ms, traffic.Completed),
		connection("a", 2*second, 2100*ms, traffic.Completed), // came after
	}, begin, begin.Add(2*second), func(flow string) bool { return flow == "a" })
	want := Completions{Offered: 4, Completed: 3, Broken: 1, PerSecond: 1.5, BytesPerSecond: 150, MeanMS: 400, P50MS: 300, P99MS: 800}
	if got.BrokenBy[traffic.Reset] != 1 {
		t.Errorf("broken by %v", got.BrokenBy)
	}
	got.BrokenBy = nil
	if got.Offered != want.Offered || got.Completed != want.Completed || got.Broken != want.Broken || got.PerSecond != want.PerSecond ||
		got.BytesPerSecond != want.BytesPerSecond || got.MeanMS != want.MeanMS || got.P50MS != want.P50MS || got.P99MS != want.P99MS {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestALowerRateHasMoreTime(t *testing.T) {
	slow := Options{Rate: 0.25}
	if usual := (&Options{}).Stretched(8); usual != 8 {
		t.Errorf("8 ns of the usual rate became %d", usual)
	}
	if got := slow.Stretched(8); got != 32 {
		t.Errorf("8 ns at a quarter of the rate became %d", got)
	}
}
