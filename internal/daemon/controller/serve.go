// Package controller is the brain of a fleet: the hub that nodes are connected to, the engine that judges health and weighs servers,
// the desired state in a store, and the process `ballast controller` that is made of them. Hub and Engine also work inside a load
// balancer that runs by a file.
package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// Implementation constants of a controller's connections.
const (
	silenceMax      = 2 * time.Second // of a node, until it is asked for a sign of life
	deadAfter       = 8 * time.Second // of silence after that. Nodes that were only busy would all join anew, and keep everybody busy
	headerTimeout   = 5 * time.Second
	shutdownTimeout = 2 * time.Second // for requests under way
)

// Serve answers nodes and ctl until ctx ends, and closes the listener. Streams end with ctx.
func Serve(ctx context.Context, listener net.Listener, config *tls.Config, handler http.Handler) error {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	server := &http.Server{
		Handler: handler, TLSConfig: config, ReadHeaderTimeout: headerTimeout, Protocols: new(http.Protocols),
		HTTP2:       &http.HTTP2Config{SendPingTimeout: silenceMax, PingTimeout: deadAfter, WriteByteTimeout: silenceMax + deadAfter},
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    quietLog(),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	finished := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(finished)
		deadline, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if server.Shutdown(deadline) != nil {
			server.Close()
		}
	})
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		if stop() {
			listener.Close()
		}
		return err
	}
	<-finished
	return nil
}

// quietLog drops what net/http says of single connections: peers that matter are counted and named by the hub.
func quietLog() *log.Logger { return log.New(io.Discard, "", 0) }
