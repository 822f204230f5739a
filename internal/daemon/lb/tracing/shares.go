// Whose packets are most, by a sample that is taken when somebody looks.
package tracing

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/algo/heavy"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/sampled"
	"github.com/ballast-lb/ballast/internal/linux/lb"
)

// Implementation constants of such samples: however many ask, a load balancer looks at sampledRate packets a second, in a third of the time.
const (
	sharesTime  = 5 * time.Second
	sharesPause = 10 * time.Second // whoever asks within it is told the last sample
	sharesMost  = 20               // that are told
	counted     = 4096             // prefixes, servers: memory is bounded also in a flood of forged addresses
)

// Prefixes that clients are counted by: what a site has, at the least.
const (
	prefix4 = 24
	prefix6 = 48
)

var errGaveWay = errors.New("the sample ended early, for `ballast ctl trace`")

// shares are those of the last sample.
type shares struct {
	turn  sync.Mutex // of who takes one
	last  *ballastv1.Sample
	taken time.Time
}

// Shares takes a sample of packets, or returns the last one if that is new, with its age. It ends early with ctx, or if a trace begins.
func (t *Tracer) Shares(ctx context.Context) (*ballastv1.Sample, error) {
	t.shares.turn.Lock()
	defer t.shares.turn.Unlock()
	if age := time.Since(t.shares.taken); t.shares.last != nil && age < sharesPause {
		again := proto.CloneOf(t.shares.last)
		again.Age = durationpb.New(age)
		return again, nil
	}
	taken, err := t.takeShares(ctx)
	if err == nil {
		t.shares.last, t.shares.taken = taken, time.Now()
	}
	return taken, err
}

// Ask has a sample taken for somebody who does not wait, such as a controller. Run answers.
func (t *Tracer) Ask(answer func(*ballastv1.Sample, error)) {
	select {
	case t.asked <- answer:
	default:
		answer(nil, errors.New("too many questions at once: ask again in a few seconds"))
	}
}

// Run answers what Ask was asked until ctx ends.
func (t *Tracer) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case answer := <-t.asked:
			answer(t.Shares(ctx))
		}
	}
}

func (t *Tracer) takeShares(ctx context.Context) (*ballastv1.Sample, error) {
	if ctx.Err() != nil { // it waited for its turn
		return nil, ctx.Err()
	}
	fits, err := t.fitting()
	if err != nil {
		return nil, err
	}
	trace, err := t.begin(lb.TraceFilter{}, fits, newReader(nil), make(chan struct{}))
	if err != nil {
		return nil, err
	}
	defer t.end()
	enough, cancel := context.WithTimeout(ctx, sharesTime)
	defer cancel()
	defer context.AfterFunc(enough, func() { trace.Close() })()
	names, _ := lb.VerdictNames()
	outcomes, _ := lb.SessionOutcomes()
	clients, servers, tally, began := heavy.New(counted), heavy.New(counted), sampled.Tally{}, time.Now()
	for {
		event, err := trace.Next()
		if errors.Is(err, os.ErrClosed) {
			break
		}
		if err != nil {
			return nil, err
		}
		shown := t.explain(event, names, outcomes)
		weight := tally.Add(&shown)
		clients.Add(prefixOf(shown.Source.Addr()), weight)
		server := "(none)"
		if shown.Server != "" {
			server = shown.Service + " " + shown.Server
		}
		servers.Add(server, weight)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case enough.Err() == nil:
		return nil, errGaveWay
	}
	return &ballastv1.Sample{Seconds: time.Since(began).Seconds(), Sampled: tally.Sampled, LeftOut: tally.LeftOut, Packets: tally.Packets,
		Clients: sharesToProto(tally.Shares(clients, sharesMost)), Servers: sharesToProto(tally.Shares(servers, sharesMost)), Crowded: clients.Full()}, nil
}

func prefixOf(client netip.Addr) string {
	bits := prefix6
	if client = client.Unmap(); client.Is4() {
		bits = prefix4
	}
	prefix, err := client.Prefix(bits)
	if err != nil {
		return "(none)"
	}
	return prefix.String()
}

func sharesToProto(list []sampled.Share) (out []*ballastv1.SampleShare) {
	for _, s := range list {
		out = append(out, &ballastv1.SampleShare{Name: s.Name, Packets: s.Packets, Share: s.Share, Error: s.Error})
	}
	return out
}
