// What requests under a policy were like: how many, how fast, how long.
package compare

import (
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
)

// fairnessInterval is between two looks at how many connections each server has.
const fairnessInterval = 20 * time.Millisecond

// complete sums up the connections with that many servers between begin and end.
func complete(connections []traffic.Connection, servers int, begin, end time.Time) scenario.Completions {
	result := scenario.Completions{BrokenBy: map[traffic.Class]int{}, ByServer: map[string]int{}, Fairness: fairness(connections, servers, begin, end)}
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
		if one.Server != "" {
			result.ByServer[one.Server]++
		}
		if one.Class == traffic.Refused {
			result.Refused++
			continue
		}
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

// fairness is Jain's index of the servers' open connections, mean over the moments at which there are any: as 6LB V has it of their load.
func fairness(connections []traffic.Connection, servers int, begin, end time.Time) float64 {
	moments := int(end.Sub(begin) / fairnessInterval)
	open := make([]map[string]float64, moments)
	for _, one := range connections {
		first := max(int((one.Started.Sub(begin)+fairnessInterval-1)/fairnessInterval), 0)
		for at := first; at < moments && begin.Add(time.Duration(at)*fairnessInterval).Before(one.Ended); at++ {
			if open[at] == nil {
				open[at] = map[string]float64{}
			}
			open[at][one.Server]++
		}
	}
	var indices []float64
	for _, counts := range open {
		if len(counts) > 0 {
			indices = append(indices, scenario.Jain(counts, servers))
		}
	}
	if len(indices) == 0 {
		return 0
	}
	return stat.Mean(indices, nil)
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }
