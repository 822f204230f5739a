package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
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
		"a daemon that had been ready died":    {nil, fmt.Errorf("trial: %w", errors.Join(errors.New("a"), await.Broken(errors.New("it died")))), PromiseBroken},
		"interrupted":                          {nil, context.Canceled, NotRun},
		"the time of the whole scenario is up": {nil, loadmeter.ErrOutOfTime, NotRun},
	} {
		r := Result{Failures: one.failures}
		err := r.conclude(one.err)
		if r.Outcome != one.want || r.Kept != (one.want == PromiseKept) || (err != nil) != (one.want == NotRun) || (one.err != nil && r.Error == "" && len(r.Failures) == 0) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
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

func TestJainsIndexIsOneForEqualLoads(t *testing.T) {
	for want, loads := range map[float64]map[string]float64{1: {"s1": 3, "s2": 3}, 0.5: {"s1": 2}, 0.8: {"s1": 1, "s2": 3}} {
		if got := Jain(loads, 2); got != want {
			t.Errorf("%v: %v, want %v", loads, got, want)
		}
	}
}
