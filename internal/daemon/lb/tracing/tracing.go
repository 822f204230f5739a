// Package tracing streams what becomes of packets to one who asks for it.
package tracing

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/linux/lb"
)

// rate is how many events a second a trace reports at most.
const rate = 200

// Tracer has the one trace that may run. All methods are safe for concurrent use.
type Tracer struct {
	Tables *dataplane.Tables
	Log    *slog.Logger

	mutex      sync.Mutex
	trace      *lb.Trace // nil: none runs
	suppressed uint32    // since the event before
}

// Refill lets so many events come as may in a second: it is to be called once in each.
func (t *Tracer) Refill() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.trace == nil {
		return
	}
	if suppressed, err := t.trace.Allow(rate); err == nil {
		t.suppressed += suppressed
	}
}

// ServeHTTP streams events as JSON, one a line, until the client goes.
func (t *Tracer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	filter, err := t.filter(r)
	var trace *lb.Trace
	if err == nil {
		trace, err = t.begin(filter)
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
	encoder := json.NewEncoder(w)
	for {
		event, err := trace.Next()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			t.Log.Error("trace ended", "error", err)
			return
		}
		if encoder.Encode(t.explain(event, names, outcomes)) != nil {
			return
		}
		flusher.Flush()
	}
}

func (t *Tracer) begin(filter lb.TraceFilter) (*lb.Trace, error) {
	t.mutex.Lock()
	if t.trace != nil {
		t.mutex.Unlock()
		return nil, errors.New("a trace is running already: end it first")
	}
	trace, err := t.Tables.Path().StartTrace(filter)
	if err == nil {
		t.trace, t.suppressed = trace, 0
	}
	t.mutex.Unlock()
	t.Refill()
	return trace, err
}

func (t *Tracer) end() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.trace.Close()
	t.trace = nil
}

func (t *Tracer) filter(r *http.Request) (filter lb.TraceFilter, err error) {
	query := r.URL.Query()
	if name := query.Get("service"); name != "" {
		place, ok := t.Tables.Now().Places[name]
		if !ok {
			return filter, fmt.Errorf("there is no service %q: see `ballast ctl service list`", name)
		}
		filter.Service = place.Number
	}
	if client := query.Get("client"); client != "" {
		if filter.Client, err = netip.ParseAddr(client); err != nil {
			return filter, fmt.Errorf("client: %w: give an address", err)
		}
	}
	if port := query.Get("port"); port != "" {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return filter, fmt.Errorf("port: %w", err)
		}
		filter.ClientPort = uint16(number)
	}
	return filter, nil
}

// explain puts names in place of numbers.
func (t *Tracer) explain(e lb.TraceEvent, verdicts, outcomes []string) api.TraceEvent {
	out := api.TraceEvent{
		Source: e.Source, Destination: e.Destination, Protocol: e.Protocol, Flags: e.TCPFlags, Length: e.Length,
		ID: e.Server, Verdict: verdicts[e.Verdict], Timestamp: e.Timestamp, Echo: e.Echo,
	}
	if s := e.Session; s != nil {
		out.Session = &api.TraceSession{Outcome: outcomes[s.Outcome], Identity: s.Identity, ID: s.Server}
		if s.Identity != "" {
			out.Session.Name = hex.EncodeToString(s.Name[:])
		}
	}
	t.mutex.Lock()
	out.Suppressed, t.suppressed = t.suppressed, 0
	t.mutex.Unlock()
	now := t.Tables.Now()
	for name, place := range now.Places {
		if e.Service == 0 || place.Number != e.Service {
			continue
		}
		out.Service, out.Server = name, now.ServerName(name, e.Server)
		for _, stop := range e.Stops {
			out.Stops = append(out.Stops, now.ServerName(name, stop))
		}
	}
	return out
}
