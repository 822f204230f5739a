package compare

import (
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
)

func TestCompletionsCountWhatCameAndWhatEnded(t *testing.T) {
	begin := time.Unix(1000, 0)
	connection := func(started, ended time.Duration, class traffic.Class) traffic.Connection {
		return traffic.Connection{Class: class, Bytes: 100, Started: begin.Add(started), Ended: begin.Add(ended)}
	}
	const ms, second = time.Millisecond, time.Second
	got := complete([]traffic.Connection{
		connection(-second, 100*ms, traffic.Completed), // came before: counts as throughput only
		connection(0, 100*ms, traffic.Completed),
		connection(second, 1300*ms, traffic.Completed),
		connection(1900*ms, 2700*ms, traffic.Completed), // ended after: counts as time only
		connection(second, 1100*ms, traffic.Reset),
		connection(2*second, 2100*ms, traffic.Completed), // came after
	}, 1, begin, begin.Add(2*second))
	want := scenario.Completions{Offered: 4, Completed: 3, Broken: 1, PerSecond: 1.5, BytesPerSecond: 150, MeanMS: 400, P50MS: 300, P99MS: 800}
	if got.BrokenBy[traffic.Reset] != 1 {
		t.Errorf("broken by %v", got.BrokenBy)
	}
	got.BrokenBy = nil
	if got.Offered != want.Offered || got.Completed != want.Completed || got.Broken != want.Broken || got.PerSecond != want.PerSecond ||
		got.BytesPerSecond != want.BytesPerSecond || got.MeanMS != want.MeanMS || got.P50MS != want.P50MS || got.P99MS != want.P99MS {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestRefusalsAndTheSpreadOfOpenConnectionsAreCounted(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(server string, started, ended time.Duration, class traffic.Class) traffic.Connection {
		return traffic.Connection{Class: class, Server: server, Started: begin.Add(started), Ended: begin.Add(ended)}
	}
	const second = time.Second
	got := complete([]traffic.Connection{
		at("s1", 0, second, traffic.Completed),
		at("s2", 0, second, traffic.Completed), // so far 1 and 1 of two servers: 1
		at("s1", second, 2*second, traffic.Completed),
		at("s1", second, 2*second, traffic.Completed), // from here on 2 and 0: one half
		at("s1", second, second, traffic.Refused),
	}, 2, begin, begin.Add(3*second)) // in the last second nothing is open: it does not count
	if got.Fairness != 0.75 {
		t.Errorf("fairness %v", got.Fairness)
	}
	if got.Offered != 5 || got.Completed != 4 || got.Refused != 1 || got.Broken != 0 || got.ByServer["s1"] != 4 || got.ByServer["s2"] != 1 {
		t.Errorf("got %+v", got)
	}
	if none := complete(nil, 2, begin, begin.Add(second)); none.Fairness != 0 {
		t.Errorf("fairness %v of nothing", none.Fairness)
	}
}
