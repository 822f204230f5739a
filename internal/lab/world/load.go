// The lab's side of a client process: starts it, follows its events, adds them up.
package world

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Load is one running client process.
type Load struct {
	*Process
	stdin *os.File
	done  chan struct{} // closed after the last event

	mutex       sync.Mutex
	progress    traffic.Progress
	Connections []traffic.Connection
}

// startLoad starts a client process that carries out a plan.
func (l *Lab) startLoad(plan traffic.Plan) *Load {
	input, stdin, err := os.Pipe()
	script.Checkf(err, "make pipe for client")
	defer input.Close()
	reader, writer := io.Pipe()
	p := script.Must(l.Start(Spawn{
		Node: ClientNode, Program: l.Processes, Arguments: []string{process.Peer, process.Client}, stdin: input, Stdout: writer,
	}))
	result := &Load{Process: p, stdin: stdin, done: make(chan struct{})}
	go func() {
		<-p.Exited
		writer.Close()
	}()
	go result.follow(reader)
	script.Checkf(json.NewEncoder(stdin).Encode(plan), "send plan to client")
	return result
}

func (l *Load) follow(events io.Reader) {
	defer close(l.done)
	decoder := json.NewDecoder(events)
	for {
		var event traffic.Event
		if decoder.Decode(&event) != nil {
			return
		}
		l.mutex.Lock()
		if event.Progress != nil {
			l.progress = *event.Progress
		}
		if event.Connection != nil {
			l.Connections = append(l.Connections, *event.Connection)
		}
		l.mutex.Unlock()
	}
}

// Now is the latest progress.
func (l *Load) Now() traffic.Progress {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.progress
}

// Finish asks for no new connections and waits until the open ones have ended.
func (l *Load) Finish(ctx context.Context) {
	// A client that has ended already cannot be told; wait says how it ended.
	_, _ = io.WriteString(l.stdin, traffic.Stop+"\n")
	l.Wait(ctx)
}

// Wait waits until every connection of the plan has ended.
func (l *Load) Wait(ctx context.Context) {
	l.wanted.Store(true)
	select {
	case <-l.done:
	case <-ctx.Done():
		script.Check(fmt.Errorf("wait for the clients' last connections: %d are open: %w", l.Now().Open, context.Cause(ctx)))
	}
	<-l.Exited
	_ = l.stdin.Close()
	if l.Err != nil {
		script.Check(fmt.Errorf("client process: %w: %s", l.Err, l.LastWords()))
	}
}

// Tally adds up the fates of connections.
type Tally struct {
	Attempted     int                   `json:"attempted"`
	Completed     int                   `json:"completed"`
	Broken        int                   `json:"broken"`
	BrokenBy      map[traffic.Class]int `json:"broken_by,omitempty"`
	BrokenFlows   map[string]int        `json:"broken_flows,omitempty"`
	Flows         map[string]int        `json:"flows,omitempty"`
	Throughout    map[string]int        `json:"throughout,omitempty"` // flow -> connections that lived through all events and completed
	ServedBy      map[string]int        `json:"served_by,omitempty"`
	Bytes         int64                 `json:"bytes"`
	LongestSecond float64               `json:"longest_seconds"`
	Early         int                   `json:"early,omitempty"`       // HTTP/3 connections whose first flight's request was taken (0-RTT)
	LongHellos    int                   `json:"long_hellos,omitempty"` // whose hello had a key of ML-KEM and more than one datagram
	Examples      []traffic.Connection  `json:"broken_examples,omitempty"`
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
	if c.LongHello {
		t.LongHellos++
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
	t.LongHellos += other.LongHellos
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

// State is the latest progress and the connections that have ended.
func (l *Load) State() (traffic.Progress, []traffic.Connection) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.Connections) > 0 && l.Ended() { // the last report came before the last connections ended
		broken := 0
		for _, count := range brokenBy(l.Connections) {
			broken += count
		}
		l.progress.Attempted, l.progress.Broken = len(l.Connections), broken
		l.progress.Completed, l.progress.Open = len(l.Connections)-broken, 0
		clear(l.progress.OpenByServer)
	}
	return l.progress, l.Connections
}

// Ended tells whether every connection of the plan has ended.
func (l *Load) Ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}
