// Package listen has a daemon's TCP ports, and serves its metrics at one.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/ballast-lb/ballast/internal/api"
)

// Try finds out, before anything is attached, whether an address can be listened on. It does not go on listening: whoever checks a
// load balancer by TCP must not reach one that does not forward yet.
func Try(what, address string) error {
	listener, err := TCP(what, address)
	if listener != nil {
		err = listener.Close()
	}
	return err
}

// TCP is a TCP listener; nil without an address.
func TCP(what, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return listener, nil
}

// ServeMetrics answers Prometheus, and whoever checks whether something keeps this daemon from its work, until ctx ends.
func ServeMetrics(ctx context.Context, listener net.Listener, handler http.Handler, health func() []string) error {
	mux := http.NewServeMux()
	mux.Handle("GET "+api.PathMetrics, handler)
	mux.HandleFunc("GET "+api.PathHealth, func(w http.ResponseWriter, _ *http.Request) {
		api.ServeHealth(w, health())
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: api.HeaderTimeout, WriteTimeout: metricsWriteTimeout, IdleTimeout: api.IdleTimeout}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(limitMetrics(listener)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
