// What the tests of hubs share.
package hub

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/pki"
)

// serveHub answers by TLS on loopback until the test ends, or stop is called.
func serveHub(t testing.TB, hub *Hub, credentials *pki.Credentials) (address string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Require(t, err)
	mux := http.NewServeMux()
	mux.Handle(hub.Handler())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, credentials, nil, mux, nil) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		fleettest.Require(t, <-ended)
	}
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// ignored takes reports and forgets them.
type ignored struct{}

func (ignored) Traffic(string, []engine.ServerTraffic)      {}
func (ignored) Health(string, []engine.ServerHealth)        {}
func (ignored) Alive(string)                                {}
func (ignored) Load(pki.Identity, *engine.Load)             {}
func (ignored) Losses(pki.Identity, map[string]health.Loss) {}
func testHub(t testing.TB, change func(o *Options)) *Hub {
	o := Options{Name: "c1", Version: "1.2.3", Reports: ignored{}, Log: fleettest.Log(t)}
	if change != nil {
		change(&o)
	}
	return New(o)
}

func counted(counter prometheus.Counter) float64 {
	var metric dto.Metric
	if err := counter.Write(&metric); err != nil {
		panic(err)
	}
	return metric.Counter.GetValue()
}
