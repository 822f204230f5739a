// Traffic: the processes of clients, and their events.
package world

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Stall is how long a connection may go without progress.
const Stall = 15 * time.Second

// Traffic is that of a trial's clients.
type Traffic struct {
	network *Network
	random  *rand.Rand

	mutex sync.Mutex
	loads []*Load
}

// Loads are all that were started.
func (t *Traffic) Loads() []*Load {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.loads
}

// Generate starts traffic.
func (t *Traffic) Generate(flows ...traffic.Flow) *Load { return t.GeneratePatiently(Stall, flows...) }

// GeneratePatiently starts traffic whose connections may go without progress for the given time.
func (t *Traffic) GeneratePatiently(stall time.Duration, flows ...traffic.Flow) *Load {
	return t.start(traffic.Plan{Seed: t.random.Uint64(), Sources: t.sources(), Stall: stall, Flows: flows})
}

// GenerateTimed is GeneratePatiently with a seed of its caller's, and notes when each request was answered.
func (t *Traffic) GenerateTimed(seed uint64, stall time.Duration, flows ...traffic.Flow) *Load {
	return t.start(traffic.Plan{Seed: seed, Sources: t.sources(), Stall: stall, Timed: true, Flows: flows})
}

func (t *Traffic) sources() []string {
	return t.network.SourceAddresses(len(t.network.VIPs) > 0 && t.network.VIPs[0].Is6())
}

// Until waits until the progress of a load satisfies the condition.
func (t *Traffic) Until(running *Load, within time.Duration, what string, condition func(traffic.Progress) bool) {
	await.Until(t.network.lab.Context, within, what, func() error {
		ended := running.Ended() // then the state that is read after this is the last one
		now, _ := running.State()
		if condition(now) {
			return nil
		}
		if err := running.Died(); err != nil && ended {
			return await.Stop(err)
		}
		return fmt.Errorf("%d connections attempted, %d open", now.Attempted, now.Open)
	})
}

// UntilEmpty waits until no client has an open connection to the servers.
func (t *Traffic) UntilEmpty(within time.Duration, servers ...int) {
	await.Until(t.network.lab.Context, within, fmt.Sprintf("no connection to servers %v is open", servers), func() error {
		for _, i := range servers {
			for _, running := range t.Loads() {
				if open := running.Now().OpenByServer[ServerName(i)]; open != 0 {
					return fmt.Errorf("%s has %d", ServerName(i), open)
				}
			}
		}
		return nil
	})
}

// Busy waits until as many connections were attempted since the call.
func (t *Traffic) Busy(running *Load, connections int) {
	before := running.Now().Attempted
	t.Until(running, 30*time.Second, "more connections were attempted",
		func(p traffic.Progress) bool { return p.Attempted >= before+connections })
}

// Finish asks for no new connections of any load and waits until all open ones have ended.
func (t *Traffic) Finish(ctx context.Context) {
	for _, running := range t.Loads() {
		running.Finish(ctx)
	}
}

// Load is one running client process.
type Load struct {
	*host.Process
	stdin *os.File
	done  chan struct{} // closed after the last event

	mutex       sync.Mutex
	progress    traffic.Progress
	Connections []traffic.Connection
	Answers     []traffic.Answer // of timed traffic
}

// start starts a client process that carries out a plan.
func (t *Traffic) start(plan traffic.Plan) *Load {
	input, stdin, err := os.Pipe()
	script.Checkf(err, "make pipe for client")
	defer input.Close()
	reader, writer := io.Pipe()
	load := &Load{stdin: stdin, done: make(chan struct{})}
	load.Process = t.network.lab.StartPeer(process.Client, host.Spawn{Node: ClientNode, Stdin: input, Stdout: writer})
	go func() {
		<-load.Exited
		writer.Close()
	}()
	go load.follow(reader)
	script.Checkf(json.NewEncoder(stdin).Encode(plan), "send plan to client")
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.loads = append(t.loads, load)
	return load
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
		l.Answers = append(l.Answers, event.Answers...)
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
	// A client that has ended already reads nothing; Wait says how it ended.
	_, _ = io.WriteString(l.stdin, traffic.Stop+"\n")
	l.Wait(ctx)
}

// Wait waits until every connection of the plan has ended.
func (l *Load) Wait(ctx context.Context) {
	l.Wanted.Store(true)
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

// Ended reports whether every connection of the plan has ended.
func (l *Load) Ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}
