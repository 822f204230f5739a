// Who was refused before a stream began, and why.
package hub

import (
	"context"
	"crypto/tls"
	"log"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants: lines of log for one reason. Anybody who reaches the port can be refused.
const (
	refusalPeriod = 10 * time.Second
	refusalsFirst = 5 // at once
)

// Refusals count connections and requests that a listener refuses. A nil one counts nothing.
type Refusals struct {
	count *prometheus.CounterVec
	log   *slog.Logger
	lines map[pki.Reason]*rate.Limiter
}

// NewRefusals returns a count that a registry may collect.
func NewRefusals(log *slog.Logger) *Refusals {
	r := &Refusals{log: log, lines: map[pki.Reason]*rate.Limiter{}, count: counter("ballast_control_connections_refused_total",
		"Connections and requests that were refused before a stream or a call of the fleet API began.", "reason")}
	for _, reason := range pki.Reasons() { // there from the beginning: rates are wrong of what appears at 1
		r.count.WithLabelValues(string(reason))
		r.lines[reason] = rate.NewLimiter(rate.Every(refusalPeriod), refusalsFirst)
	}
	return r
}

// Describe makes Refusals a prometheus.Collector.
func (r *Refusals) Describe(out chan<- *prometheus.Desc) { r.count.Describe(out) }

// Collect makes Refusals a prometheus.Collector.
func (r *Refusals) Collect(out chan<- prometheus.Metric) { r.count.Collect(out) }

func (r *Refusals) note(reason pki.Reason, address, why string) {
	if r == nil {
		return
	}
	r.count.WithLabelValues(string(reason)).Inc()
	if r.lines[reason].Allow() {
		r.log.Warn("connection refused", "address", address, "reason", reason, "error", legible(why))
	}
}

type refusalsKey struct{}

// Refused counts who was refused by what Joining serves.
func (r *Refusals) Refused(reason pki.Reason, address string, why error) {
	r.note(reason, address, why.Error())
}

// NoteRefused counts a request that a handler below Serve refuses.
func NoteRefused(r *http.Request, reason pki.Reason, err error) {
	refusals, _ := r.Context().Value(refusalsKey{}).(*Refusals)
	refusals.note(reason, r.RemoteAddr, err.Error())
}

func (r *Refusals) into(ctx context.Context) context.Context {
	return context.WithValue(ctx, refusalsKey{}, r)
}

// watch counts the peers that a listener's verification refuses.
func (r *Refusals) watch(config *tls.Config) {
	verify := config.VerifyConnection
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		own := config.Clone()
		own.GetConfigForClient = nil
		own.VerifyConnection = func(state tls.ConnectionState) error {
			err := verify(state)
			if err != nil {
				r.note(pki.ReasonOf(err), hello.Conn.RemoteAddr().String(), err.Error())
			}
			return err
		}
		return own, nil
	}
}

// errorLog takes what net/http says of single connections. What crypto/tls refuses by itself is counted: verification comes later. The rest
// is dropped: peers that matter are counted and named by the hub.
func (r *Refusals) errorLog() *log.Logger { return log.New(handshakes{r}, "", 0) }

type handshakes struct{ *Refusals }

// Write takes one line of net/http.
func (h handshakes) Write(line []byte) (int, error) {
	rest, handshake := strings.CutPrefix(strings.TrimSpace(string(line)), "http: TLS handshake error from ")
	address, why, _ := strings.Cut(rest, ": ")
	switch {
	case !handshake:
	case why == "tls: client didn't provide a certificate":
		h.note(pki.NoCertificate, address, why)
	case strings.HasPrefix(why, "tls: "), strings.HasPrefix(why, "remote error: "):
		h.note(pki.BadHandshake, address, why)
	}
	return len(line), nil
}
