// What has become of connections.
package world

import (
	"maps"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// Tally adds up the fates of connections.
type Tally struct {
	Attempted        int                   `json:"attempted"`
	Completed        int                   `json:"completed"`
	Broken           int                   `json:"broken"`
	BrokenBy         map[traffic.Class]int `json:"broken_by,omitempty"`
	BrokenFlows      map[string]int        `json:"broken_flows,omitempty"`
	Flows            map[string]int        `json:"flows,omitempty"`
	Throughout       map[string]int        `json:"throughout,omitempty"` // flow -> connections that lived through all events and completed
	ServedBy         map[string]int        `json:"served_by,omitempty"`
	Bytes            int64                 `json:"bytes"`
	LongestSecond    float64               `json:"longest_seconds"`
	Early            int                   `json:"early,omitempty"`       // HTTP/3 connections whose first flight's request was taken (0-RTT)
	LongClientHellos int                   `json:"long_hellos,omitempty"` // whose hello had a key of ML-KEM and more than one datagram
	Examples         []traffic.Connection  `json:"broken_examples,omitempty"`
}

const examplesMax = 8

// Add counts a connection that has ended.
func (t *Tally) Add(c traffic.Connection) {
	if t.BrokenBy == nil {
		t.BrokenBy, t.BrokenFlows = map[traffic.Class]int{}, map[string]int{}
		t.Flows, t.ServedBy = map[string]int{}, map[string]int{}
	}
	t.Attempted++
	t.Flows[c.Flow]++
	t.Bytes += c.Bytes
	t.LongestSecond = max(t.LongestSecond, c.Ended.Sub(c.Started).Round(time.Millisecond).Seconds())
	if c.Server != "" {
		t.ServedBy[c.Server]++
	}
	if c.Early {
		t.Early++
	}
	if c.LongClientHello {
		t.LongClientHellos++
	}
	if c.Class == traffic.Completed {
		t.Completed++
		return
	}
	t.Broken++
	t.BrokenBy[c.Class]++
	t.BrokenFlows[c.Flow]++
	if len(t.Examples) < examplesMax {
		t.Examples = append(t.Examples, c)
	}
}

// Merge adds another tally to this one.
func (t *Tally) Merge(other Tally) {
	t.Attempted += other.Attempted
	t.Completed += other.Completed
	t.Broken += other.Broken
	t.Bytes += other.Bytes
	t.Early += other.Early
	t.LongClientHellos += other.LongClientHellos
	t.LongestSecond = max(t.LongestSecond, other.LongestSecond)
	t.BrokenBy = mergeCounts(t.BrokenBy, other.BrokenBy)
	t.BrokenFlows = mergeCounts(t.BrokenFlows, other.BrokenFlows)
	t.Flows = mergeCounts(t.Flows, other.Flows)
	t.Throughout = mergeCounts(t.Throughout, other.Throughout)
	t.ServedBy = mergeCounts(t.ServedBy, other.ServedBy)
	t.Examples = append(t.Examples, other.Examples...)
	t.Examples = t.Examples[:min(len(t.Examples), examplesMax)]
}

func mergeCounts[K comparable](a, b map[K]int) map[K]int {
	sum := maps.Clone(a)
	if sum == nil {
		sum = map[K]int{}
	}
	for key, count := range b {
		sum[key] += count
	}
	return sum
}

func brokenBy(connections []traffic.Connection) map[traffic.Class]int {
	broken := map[traffic.Class]int{}
	for _, connection := range connections {
		if connection.Class != traffic.Completed {
			broken[connection.Class]++
		}
	}
	return broken
}
