// What requests under a policy were like: how many, how fast, how long.
package compare

import (
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
)

// complete sums up the connections between begin and end.
func complete(connections []traffic.Connection, begin, end time.Time) scenario.Completions {
	result := scenario.Completions{BrokenBy: map[traffic.Class]int{}}
	var times []float64
	var bytes int64
	within := 0
	for _, one := range connections {
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

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }
