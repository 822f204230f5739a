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
