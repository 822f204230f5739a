// Package tracing streams what becomes of packets to one who asks for it.
package tracing

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/report"
	"github.com/ballast-lb/ballast/internal/linux/lb"
)

// Events a second that a trace reports at most.
const (
	rate = 200
	// Of one that samples packets: more only until the sample is adjusted.
	sampledRate     = 500
	sampledRateMost = 2000
)

// waiting is how many controllers may wait for a sample.
const waiting = 4

// lookTime is how long packets are counted to choose the first sample.
const lookTime = 100 * time.Millisecond

var _ [api.TraceHeadersMost]byte = [lb.TraceHead]byte{}

// Tracer has the one trace that may run. All methods are safe for concurrent use.
type Tracer struct {
	tables *dataplane.Tables
	log    *slog.Logger

	asked      chan func(*ballastv1.Sample, error) // see Ask
	mutex      sync.Mutex
	trace      *lb.Trace // nil: none runs
	suppressed uint32    // since the event before
	sample     sample
	seen       uint32 // events since the last refill
	reader     *reader
	yields     chan struct{} // not nil: the trace gives way to others, and then this is closed

	shares shares
}

// New returns a tracer.
func New(tables *dataplane.Tables, log *slog.Logger) *Tracer {
	return &Tracer{tables: tables, log: log, asked: make(chan func(*ballastv1.Sample, error), waiting)}
}

// Refill lets so many events come as may in a second, and adjusts a sample: it is to be called once in each.
func (t *Tracer) Refill() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.trace == nil {
		return
	}
	if now := time.Now(); t.reader.stands(now) {
		t.log.Warn("trace ended: its reader has read nothing for a while: is it stopped, or its terminal?", "seconds", patience.Seconds())
		t.trace.Close()
		t.reader.socket.SetWriteDeadline(now)
		return
	}
	suppressed, err := t.trace.Allow(t.sample.events())
	if err != nil {
		t.log.Error("trace not continued", "error", err)
		return
	}
	t.suppressed += suppressed
	before := t.sample
	t.sample.adjust(t.seen + suppressed)
	t.seen = 0
	if t.sample != before {
		if err := t.trace.Sample(t.sample.oneOf); err != nil {
			t.log.Error("trace's sample not adjusted", "error", err)
		}
	}
}

// ServeHTTP streams events as JSON, one a line, until the client goes.
func (t *Tracer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	filter, sample, err := t.filter(r)
	var trace *lb.Trace
	reader := newReader(api.SocketOf(r.Context()))
	if err == nil {
		trace, err = t.begin(filter, sample, reader, nil)
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		json.NewEncoder(w).Encode(api.BadRequest("%s", err))
		return
	}
	go func() {
		<-r.Context().Done()
		trace.Close()
	}()
	defer t.end()
	names, _ := lb.VerdictNames()
	outcomes, _ := lb.SessionOutcomes()
	flusher := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	flusher.Flush()
	encoder, devices := json.NewEncoder(w), map[int]string{}
	for {
		event, err := trace.Next()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			t.log.Error("trace ended", "error", err)
			return
		}
		shown := t.explain(event, names, outcomes)
		if shown.Interface = devices[event.Interface]; shown.Interface == "" {
			shown.Interface = deviceName(event.Interface)
			devices[event.Interface] = shown.Interface
		}
		if r.URL.Query().Has(api.TraceHeaders) {
			shown.Headers, shown.FrameLength = event.Headers, event.FrameLength
		}
		if encoder.Encode(shown) != nil {
			return
		}
		if flusher.Flush() != nil {
			return
		}
		reader.sent()
	}
}

// begin begins a trace. yields is not nil if it gives way to others; it is closed when that trace has ended.
func (t *Tracer) begin(filter lb.TraceFilter, sample sample, reader *reader, yields chan struct{}) (*lb.Trace, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for t.yields != nil {
		before := t.yields
		t.trace.Close()
		t.mutex.Unlock()
		<-before
		t.mutex.Lock()
	}
	if t.trace != nil {
		return nil, errors.New("a trace is running already: end it first; one whose reader is stopped ends by itself within seconds")
	}
	filter.OneOf = sample.oneOf
	trace, err := t.tables.Path().StartTrace(filter)
	if err != nil {
		return nil, err
	}
	if _, err := trace.Allow(sample.events()); err != nil {
		return nil, errors.Join(err, trace.Close())
	}
	t.trace, t.suppressed, t.seen, t.sample, t.reader, t.yields = trace, 0, 0, sample, reader, yields
	return trace, nil
}

func (t *Tracer) end() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.trace.Close()
	if t.trace = nil; t.yields != nil {
		close(t.yields)
		t.yields = nil
	}
}

func (t *Tracer) filter(r *http.Request) (filter lb.TraceFilter, sample sample, err error) {
	query := r.URL.Query()
	if name := query.Get("service"); name != "" {
		place, ok := t.tables.Now().Places[name]
		if !ok {
			return filter, sample, fmt.Errorf("there is no service %q: see `ballast ctl service list`", name)
		}
		filter.Service = place.Number
	}
	if client := query.Get("client"); client != "" {
		if filter.Client, err = netip.ParseAddr(client); err != nil {
			return filter, sample, fmt.Errorf("client: %w: give an address", err)
		}
	}
	if port := query.Get("port"); port != "" {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return filter, sample, fmt.Errorf("port: %w", err)
		}
		filter.ClientPort = uint16(number)
	}
	sample, err = t.sampleOf(r)
	return filter, sample, err
}

// sampleOf is the sample that is asked for.
func (t *Tracer) sampleOf(r *http.Request) (sample, error) {
	switch text := r.URL.Query().Get(api.TraceSample); text {
	case "":
		return sample{}, nil
	case api.TraceSampleAuto:
		return t.fitting()
	default:
		oneOf, err := strconv.ParseUint(text, 10, 32)
		if err != nil || oneOf == 0 {
			return sample{}, fmt.Errorf("sample %q: give N, to trace one of N packets, or %s", text, api.TraceSampleAuto)
		}
		return sample{oneOf: uint32(oneOf)}, nil
	}
}

// fitting is a sample of as many events as may come.
func (t *Tracer) fitting() (sample, error) {
	before, err := t.packets()
	if err != nil {
		return sample{}, err
	}
	time.Sleep(lookTime)
	after, err := t.packets()
	return sampleFor(after-min(before, after), lookTime), err
}

// packets is how many have come so far.
func (t *Tracer) packets() (sum uint64, err error) {
	counters, err := report.Counters(t.tables.Now())
	for _, packets := range counters.Counters {
		sum += packets
	}
	return sum, err
}

// explain puts names in place of numbers.
func (t *Tracer) explain(e lb.TraceEvent, verdicts, outcomes []string) api.TraceEvent {
	out := api.TraceEvent{
		Source: e.Source, Destination: e.Destination, Protocol: e.Protocol, Flags: e.TCPFlags, Length: e.Length,
		ID: e.Server, Verdict: verdicts[e.Verdict], Timestamp: e.Timestamp, Echo: e.Echo,
		Time: e.Time, StandsFor: e.StandsFor,
	}
	if s := e.Session; s != nil {
		out.Session = &api.TraceSession{Outcome: outcomes[s.Outcome], Identity: s.Identity, ID: s.Server}
		if s.Identity != "" {
			out.Session.Name = hex.EncodeToString(s.Name[:])
		}
	}
	t.mutex.Lock()
	out.Suppressed, t.suppressed = t.suppressed, 0
	t.seen++
	t.mutex.Unlock()
	now := t.tables.Now()
	if name := now.ServiceAt(e.Service); name != "" {
		out.Service, out.Server = name, now.ServerName(name, e.Server)
		for _, stop := range e.Stops {
			out.Stops = append(out.Stops, now.ServerName(name, stop))
		}
	}
	return out
}

// deviceName is the name of a device. One that has gone, or that never had one here, is named by its number.
func deviceName(index int) string {
	if device, err := net.InterfaceByIndex(index); err == nil {
		return device.Name
	}
	return "interface " + strconv.Itoa(index)
}
