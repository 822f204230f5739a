// The client process: starts the connections of a plan, reports the fate of each.
package traffic

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// Implementation constants.
const (
	connectTimeout   = 15 * time.Second // five SYN retransmissions
	progressInterval = 200 * time.Millisecond
	jitterFraction   = 0.5 // pauses vary by this much, so that flows do not march in step
)

// runner holds what the connections of one plan share.
type runner struct {
	plan     Plan
	stopping chan struct{} // closed by the stop command
	events   chan Event
	sessions tls.ClientSessionCache // of connections whose first flight has a request

	mutex    sync.Mutex
	random   *rand.Rand
	next     int // index of the next source address
	progress Progress
	answers  []Answer // that are not reported yet
}

// Run reads a plan from in, carries it out and writes events to out. It returns when every connection
// has ended, or when in is closed, which means that the lab has died.
func Run(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := bufio.NewReader(in)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	r := &runner{stopping: make(chan struct{}), events: make(chan Event, 1024)}
	if err := json.Unmarshal(first, &r.plan); err != nil {
		return fmt.Errorf("decode plan: %w", err)
	}
	if len(r.plan.Sources) == 0 {
		return fmt.Errorf("plan has no source addresses: name at least one")
	}
	r.sessions = tls.NewLRUClientSessionCache(0)
	r.random = rand.New(rand.NewPCG(r.plan.Seed, r.plan.Seed))
	r.progress.OpenByServer = map[string]int{}
	r.progress.OpenByFlow = map[string]int{}

	go r.obey(lines, cancel)
	go func() {
		r.allFlows(ctx)
		close(r.events)
	}()
	return r.report(out)
}

// obey waits for the stop command; the end of its input ends everything.
func (r *runner) obey(lines *bufio.Reader, abort func()) {
	defer abort()
	for stopped := false; ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		if line == Stop+"\n" && !stopped {
			stopped = true
			close(r.stopping)
		}
	}
}

func (r *runner) allFlows(ctx context.Context) {
	var flows sync.WaitGroup
	for i := range r.plan.Flows {
		if flow := &r.plan.Flows[i]; flow.Arrivals != nil {
			flows.Go(func() { r.openLoop(ctx, flow) })
		} else {
			flows.Go(func() { r.flow(ctx, flow) })
		}
	}
	flows.Wait()
}

// flow starts the connections of one flow at its rate and waits for all of them.
func (r *runner) flow(ctx context.Context, flow *Flow) {
	var connections sync.WaitGroup
	defer connections.Wait()
	slots := make(chan struct{}, max(flow.Concurrent, 1))
	var ticks <-chan time.Time
	if flow.PerSecond > 0 {
		ticker := time.NewTicker(time.Duration(float64(time.Second) / flow.PerSecond))
		defer ticker.Stop()
		ticks = ticker.C
	}
	for started := 0; flow.Count == 0 || started < flow.Count; started++ {
		if !r.await(ctx, slots, ticks) {
			return
		}
		source := r.begin(flow)
		connections.Go(func() {
			defer func() { <-slots }()
			r.end(r.connect(ctx, flow, source))
		})
	}
}

// await takes a slot and waits for the next tick; false means that no more connections are wanted.
func (r *runner) await(ctx context.Context, slots chan<- struct{}, ticks <-chan time.Time) bool {
	if ticks != nil {
		select {
		case <-ticks:
		case <-r.stopping:
			return false
		case <-ctx.Done():
			return false
		}
	}
	select {
	case slots <- struct{}{}:
		return !r.stopped() && ctx.Err() == nil
	case <-r.stopping:
		return false
	case <-ctx.Done():
		return false
	}
}

func (r *runner) connect(ctx context.Context, flow *Flow, source netip.Addr) Connection {
	if flow.UDP {
		return r.exchangeDatagrams(ctx, flow, source)
	}
	if flow.HTTP3 {
		return r.exchangeHTTP3(ctx, flow, source)
	}
	return r.exchangeHTTP(ctx, flow, source)
}

func (r *runner) stopped() bool {
	select {
	case <-r.stopping:
		return true
	default:
		return false
	}
}

// pause idles for about the given time; the stop command cuts it short.
func (r *runner) pause(ctx context.Context, about time.Duration) {
	if about == 0 {
		return
	}
	r.mutex.Lock()
	factor := 1 + jitterFraction*(r.random.Float64()-0.5)
	r.mutex.Unlock()
	timer := time.NewTimer(time.Duration(float64(about) * factor))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.stopping:
	case <-ctx.Done():
	}
}

func (r *runner) begin(flow *Flow) netip.Addr {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.progress.Attempted++
	r.progress.Open++
	r.progress.OpenByFlow[flow.Name]++
	source := r.plan.Sources[r.next%len(r.plan.Sources)]
	r.next++
	return netip.MustParseAddr(source)
}

// answered notes that a request was answered which began at a time.
func (r *runner) answered(began time.Time) {
	if !r.plan.Timed {
		return
	}
	now := time.Now()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.answers = append(r.answers, Answer{now, now.Sub(began)})
}

// takeAnswers returns what is not reported yet.
func (r *runner) takeAnswers() []Answer {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	answers := r.answers
	r.answers = nil
	return answers
}

// answeredBy notes which server an open connection belongs to, once it is known.
func (r *runner) answeredBy(server string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.progress.OpenByServer[server]++
}

func (r *runner) received(bytes int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.progress.Bytes += int64(bytes)
}

func (r *runner) end(connection Connection) {
	connection.Ended = time.Now()
	r.mutex.Lock()
	r.progress.Open--
	r.progress.OpenByFlow[connection.Flow]--
	if connection.Server != "" {
		r.progress.OpenByServer[connection.Server]--
	}
	if connection.Class == Completed {
		r.progress.Completed++
	} else {
		r.progress.Broken++
	}
	r.mutex.Unlock()
	r.events <- Event{Connection: &connection}
}

// report writes connections as they end and progress at intervals, until all flows are done.
func (r *runner) report(out io.Writer) error {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	encoder := json.NewEncoder(out)
	for {
		select {
		case event, more := <-r.events:
			if !more {
				if err := r.reportAnswers(encoder); err != nil {
					return err
				}
				return encoder.Encode(Event{Done: true})
			}
			if err := encoder.Encode(event); err != nil {
				return fmt.Errorf("write event: %w", err)
			}
		case <-ticker.C:
			r.mutex.Lock()
			err := encoder.Encode(Event{Progress: &r.progress})
			r.mutex.Unlock()
			if err != nil {
				return fmt.Errorf("write progress: %w", err)
			}
			if err := r.reportAnswers(encoder); err != nil {
				return err
			}
		}
	}
}

func (r *runner) reportAnswers(encoder *json.Encoder) error {
	if answers := r.takeAnswers(); len(answers) > 0 {
		if err := encoder.Encode(Event{Answers: answers}); err != nil {
			return fmt.Errorf("write answers: %w", err)
		}
	}
	return nil
}
