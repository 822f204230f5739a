package comparison

import (
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// stalled is how long an answer may take before its connection counts as stalled.
const stalled = time.Second

// Measured is what clients have seen of one step.
type Measured struct {
	Step
	Alive    int                   `json:"alive"`  // connections that had a server when the event began
	Broken   int                   `json:"broken"` // connections that had a server, which lived
	BrokenBy map[traffic.Class]int `json:"broken_by,omitempty"`
	Ended    int                   `json:"ended_with_server"` // connections whose server lost its power under them
	Stalled  int                   `json:"stalled"`           // answers that took more than a second
	Lost     int                   `json:"requests_lost"`     // of all connections but those that ended with their server
	Answered int                   `json:"requests_answered"`
	Seconds  float64               `json:"event_seconds"` // that the change took

	ChangesPerMinute float64 `json:"changes_per_minute,omitempty"`

	Before Latency `json:"before"`
	During Latency `json:"during"` // from the begin of the event until a moment after its end
	After  Latency `json:"after"`
}

// Latency is that of requests, from when they were sent, new connections from their SYN on, until the last byte; in milliseconds.
type Latency struct {
	Requests int     `json:"requests"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	P999     float64 `json:"p999_ms"`
}

// window has the times of a step: the event began, was done, had its moment to settle, and the clients were asked to end.
type window struct{ begin, changed, settled, ended time.Time }

// count judges the connections of a step. A connection has ended with its server if it was open when that lost its power.
func count(when window, connections []traffic.Connection, answers []traffic.Answer, died map[string]time.Time) (m Measured) {
	m.BrokenBy = map[traffic.Class]int{}
	m.Seconds = when.changed.Sub(when.begin).Seconds()
	for _, c := range connections {
		at, dead := died[c.Server]
		withServer := dead && c.Started.Before(at) && !c.Ended.Before(at) && c.Class != traffic.Completed && c.Class != traffic.Moved
		if c.Server != "" && c.Flow == flowOpen && c.Started.Before(when.begin) && c.Ended.After(when.begin) {
			m.Alive++
		}
		switch {
		case c.Class == traffic.Completed:
		case withServer:
			m.Ended++
		case c.Server != "":
			m.Broken++
			m.BrokenBy[c.Class]++
			m.Lost++
		default:
			m.Lost++
		}
	}
	var before, during, after []traffic.Answer
	for _, answer := range answers {
		switch {
		case answer.At.Before(when.begin):
			before = append(before, answer)
		case answer.At.Before(when.settled):
			during = append(during, answer)
		default:
			after = append(after, answer)
		}
		if answer.Took > stalled && !answer.At.Before(when.begin) {
			m.Stalled++
		}
	}
	m.Answered = len(answers)
	m.Before, m.During, m.After = latencyOf(before), latencyOf(during), latencyOf(after)
	return m
}

// latencyOf are the percentiles of answers: the least time that so many of them took no longer than (nearest rank).
func latencyOf(answers []traffic.Answer) Latency {
	if len(answers) == 0 {
		return Latency{}
	}
	took := make([]float64, len(answers))
	for i, answer := range answers {
		took[i] = float64(answer.Took.Round(time.Microsecond)) / float64(time.Millisecond)
	}
	slices.Sort(took)
	at := func(share float64) float64 { return stat.Quantile(share, stat.Empirical, took, nil) }
	return Latency{len(took), at(0.5), at(0.99), at(0.999)}
}
