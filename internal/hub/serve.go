// Package hub serves the streams of a fleet's nodes: it tells them the desired state and weights, and takes their reports. Controllers run
// one, and a load balancer that runs by a file, for its agents.
package hub

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
)

// Implementation constants of a controller's connections.
const (
	silenceMax = 2 * time.Second // of a node, until it is asked for a sign of life
	deadAfter  = 8 * time.Second // of silence after that. Nodes that were only busy would all join anew, and keep everybody busy
)

// Serve answers nodes and ctl until ctx ends, and closes the listener. Streams end with ctx.
func Serve(ctx context.Context, listener net.Listener, config *tls.Config, handler http.Handler) error {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	server := &http.Server{
		Handler: handler, TLSConfig: config, ReadHeaderTimeout: api.HeaderTimeout, IdleTimeout: api.IdleTimeout, Protocols: new(http.Protocols),
		HTTP2:       &http.HTTP2Config{SendPingTimeout: silenceMax, PingTimeout: deadAfter, WriteByteTimeout: silenceMax + deadAfter},
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    quietLog(),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	err := api.ServeUntil(ctx, server, func() error { return server.ServeTLS(listener, "", "") })
	listener.Close() // also where it did not come to serving
	return err
}

// quietLog drops what net/http says of single connections: peers that matter are counted and named by the hub.
func quietLog() *log.Logger { return log.New(io.Discard, "", 0) }
