// Package controller is the brain of a fleet: the hub that nodes are connected to, the engine that judges health and weighs servers,
// the desired state in a store, and the process `ballast controller` that is made of them. Hub and Engine also work inside a load
// balancer that runs by a file.
package controller

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
