// The lab's side of a client process: starts it, follows its events, adds them up.
package lab

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
)

// load is one running client process.
type load struct {
	*Process
	stdin *os.File
	done  chan struct{} // closed after the last event

	mutex       sync.Mutex
	progress    traffic.Progress
	connections []traffic.Connection
}

// startLoad starts a client process that carries out a plan.
func (l *Lab) startLoad(plan traffic.Plan) (*load, error) {
	input, stdin, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe for client: %w", err)
	}
	defer input.Close()
	reader, writer := io.Pipe()
	p, err := l.start(spawn{
		node: clientNode, program: l.Processes, arguments: []string{process.Client}, stdin: input, stdout: writer,
	})
	if err != nil {
		return nil, err
	}
	result := &load{Process: p, stdin: stdin, done: make(chan struct{})}
	go func() {
		<-p.exited
		writer.Close()
	}()
	go result.follow(reader)
	if err := json.NewEncoder(stdin).Encode(plan); err != nil {
		return nil, fmt.Errorf("send plan to client: %w", err)
	}
	return result, nil
}

func (l *load) follow(events io.Reader) {
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
			l.connections = append(l.connections, *event.Connection)
		}
		l.mutex.Unlock()
	}
}

// now is the latest progress.
func (l *load) now() traffic.Progress {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.progress
}

// finish asks for no new connections and waits until the open ones have ended.
func (l *load) finish(ctx context.Context) error {
	// A client that has ended already cannot be told; wait says how it ended.
	_, _ = io.WriteString(l.stdin, traffic.Stop+"\n")
	return l.wait(ctx)
}

// wait waits until every connection of the plan has ended.
func (l *load) wait(ctx context.Context) error {
	l.wanted.Store(true)
	select {
	case <-l.done:
	case <-ctx.Done():
		return fmt.Errorf("wait for the clients' last connections: %d are open: %w", l.now().Open, context.Cause(ctx))
	}
	<-l.exited
	_ = l.stdin.Close()
	if l.err != nil {
		return fmt.Errorf("client process: %w: %s", l.err, l.lastWords())
	}
	return nil
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
	Examples      []traffic.Connection  `json:"broken_examples,omitempty"`
}

const examplesMax = 8

func (t *Tally) add(c traffic.Connection) {
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

// merge adds another tally to this one.
func (t *Tally) merge(other Tally) {
	t.Attempted += other.Attempted
	t.Completed += other.Completed
	t.Broken += other.Broken
	t.Bytes += other.Bytes
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
