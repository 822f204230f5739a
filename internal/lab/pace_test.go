package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMachineTimeGoesAsSlowlyAsTheMachineWorks(t *testing.T) {
	start := time.Now()
	after := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	p := &pace{}
	p.note(after(0), paceNominal/2) // no machine is faster than time
	p.note(after(10), 5*paceNominal)
	p.note(after(30), paceNominal)
	p.note(after(31), 1000*paceNominal)
	for _, one := range []struct{ from, to, want float64 }{
		{0, 10, 10}, {0, 30, 14}, {10, 20, 2}, {5, 15, 6}, {25, 31, 2}, {31, 31 + paceSlowest, 1}, {-2, 1, 3}, {20, 10, -2},
	} {
		got := p.between(after(one.from), after(one.to)).Seconds()
		if d := got - one.want; d > 1e-6 || d < -1e-6 {
			t.Errorf("from %v to %v s: %v s, not %v", one.from, one.to, got, one.want)
		}
	}
}

func TestMachineTimeNeverGoesBackAndNeverFasterThanTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, now := &pace{}, time.Now()
		for range rapid.IntRange(0, 10).Draw(t, "samples") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "later")))
			p.note(now, time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "took")))
		}
		from := now.Add(-time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "before")))
		length := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "length"))
		if got := p.between(from, from.Add(length)); got < 0 || got > length {
			t.Fatalf("%v of machine time in %v", got, length)
		}
	})
}

func TestAPromiseIsBrokenOnlyByWhatWasSeen(t *testing.T) {
	silent := &url.Error{Op: "Get", URL: "http://ballast/v1/status", Err: context.DeadlineExceeded}
	for name, one := range map[string]struct {
		failures []string
		err      error
		want     Outcome
	}{
		"the end, nothing failed":              {nil, nil, PromiseKept},
		"the end, something failed":            {[]string{"3 of 5 connections broken"}, nil, PromiseBroken},
		"not root":                             {nil, errNotRoot, NotRun},
		"connections broke, then a time-out":   {[]string{"3 of 5 connections broken"}, &overdue{"x", time.Second, silent}, PromiseBroken},
		"a time-out alone":                     {nil, fmt.Errorf("trial: %w", &overdue{"x", time.Second, errors.New("not yet")}), NotRun},
		"a daemon that had been ready died":    {nil, fmt.Errorf("trial: %w", errors.Join(errors.New("a"), &brokenPromise{errors.New("it died")})), PromiseBroken},
		"interrupted":                          {nil, context.Canceled, NotRun},
		"the time of the whole scenario is up": {nil, errOutOfTime, NotRun},
	} {
		r := Result{Failures: one.failures}
		err := r.conclude(one.err)
		if r.Outcome != one.want || r.Kept != (one.want == PromiseKept) || (err != nil) != (one.want == NotRun) || (one.err != nil && r.Error == "" && len(r.Failures) == 0) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestWhatIsPromisedAndDoesNotComeBreaksThePromiseUnlessNobodyAnswered(t *testing.T) {
	for _, one := range []struct {
		last   error
		broken bool
	}{
		{errors.New("they are still [1 2 3]"), true},
		{fmt.Errorf("reach the daemon: %w", &url.Error{Op: "Get", URL: "http://ballast", Err: context.DeadlineExceeded}), false},
	} {
		err := awaitPromised(t.Context(), time.Millisecond, "weights follow", func() error { return one.last })
		var broken *brokenPromise
		if errors.As(err, &broken) != one.broken || !strings.Contains(err.Error(), "weights follow") {
			t.Errorf("%v: broken %t", err, !one.broken)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	err := awaitPromised(ctx, time.Hour, "weights follow", func() error { return errors.New("not yet") })
	if broken := (*brokenPromise)(nil); errors.As(err, &broken) || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("interrupted: %v", err)
	}
}
