// What requests through a service were like: how many, how fast, how long.
package scenario

import (
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// Completions sums up the connections of one flow that came in a span of time. Each was one request; its time is from when it
// was due until its last byte.
type Completions struct {
	Offered        int                   `json:"offered"`
	Completed      int                   `json:"completed"`
	Broken         int                   `json:"broken"`
	BrokenBy       map[traffic.Class]int `json:"broken_by,omitempty"`
	PerSecond      float64               `json:"per_second"`       // that ended well within the span, whenever they came
	BytesPerSecond float64               `json:"bytes_per_second"` // of those
	MeanMS         float64               `json:"mean_ms"`          // of those that came within the span and ended well, whenever
	P50MS          float64               `json:"p50_ms"`
	P99MS          float64               `json:"p99_ms"`
}

// Complete sums up the connections of the flows that are wanted between begin and end.
func Complete(connections []traffic.Connection, begin, end time.Time, wanted func(flow string) bool) Completions {
	result := Completions{BrokenBy: map[traffic.Class]int{}}
	var times []float64
	var bytes int64
	within := 0
	for _, one := range connections {
		if !wanted(one.Flow) {
			continue
		}
		well := one.Class == traffic.Completed
		if well && !one.Ended.Before(begin) && one.Ended.Before(end) {
			within++
			bytes += one.Bytes
		}
		if one.Started.Before(begin) || !one.Started.Before(end) {
			continue
		}
		result.Offered++
		if !well {
			result.Broken++
			result.BrokenBy[one.Class]++
			continue
		}
		result.Completed++
		times = append(times, milliseconds(one.Ended.Sub(one.Started)))
	}
	seconds := end.Sub(begin).Seconds()
	result.PerSecond, result.BytesPerSecond = float64(within)/seconds, float64(bytes)/seconds
	if len(times) > 0 {
		slices.Sort(times)
		result.MeanMS = stat.Mean(times, nil)
		result.P50MS, result.P99MS = stat.Quantile(0.5, stat.Empirical, times, nil), stat.Quantile(0.99, stat.Empirical, times, nil)
	}
	return result
}

// Median sorts the values.
func Median(values []float64) float64 {
	slices.Sort(values)
	return stat.Quantile(0.5, stat.Empirical, values, nil)
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

// Second is what ended in one second of a run.
type Second struct {
	Completed int `json:"completed"`
	Broken    int `json:"broken"`
}

// PerSecond counts the ends of a flow's connections by the second after begin. What ends before counts for the first.
func PerSecond(connections []traffic.Connection, begin time.Time, flow string) []Second {
	var seconds []Second
	for _, one := range connections {
		if one.Flow != flow {
			continue
		}
		at := max(int(one.Ended.Sub(begin).Seconds()), 0)
		for len(seconds) <= at {
			seconds = append(seconds, Second{})
		}
		if one.Class == traffic.Completed {
			seconds[at].Completed++
		} else {
			seconds[at].Broken++
		}
	}
	return seconds
}
