// Package console is a web page of a daemon that shows people what it knows of the fleet, as it changes. It changes nothing.
package console

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Options are what a console is served by.
type Options struct {
	Address   string                           // TCP address
	TokenFile string                           // file with the token that lets people in; empty: none does
	Load      func() (*pki.Credentials, error) // the daemon's; called for an address that is not loopback
	Log       *slog.Logger
}

// Console is what New has found to be right.
type Console struct {
	guard    *guard
	attempts attempts
	log      *slog.Logger
	now      *broadcast
	limit    chan struct{} // streams that are open
	asking   chan struct{} // whoever asks once; one at a time
	sampling chan struct{} // whoever asks for a sample, which takes seconds; likewise
}

// Bounds of the port.
const (
	connectionsPerPeer = 64
	connectionsTotal   = 256
	streamsTotal       = 64
)

// New refuses what must not be served. It listens at nothing yet.
func New(o Options) (*Console, error) {
	loopback, err := isLoopback(o.Address)
	if err != nil {
		return nil, err
	}
	c := &Console{guard: newGuard(), log: o.Log, now: newBroadcast(), limit: make(chan struct{}, streamsTotal), asking: make(chan struct{}, 1), sampling: make(chan struct{}, 1)}
	if o.TokenFile != "" {
		c.guard.token = &token{path: o.TokenFile, log: o.Log}
		if _, err := readToken(o.TokenFile); err != nil {
			return nil, fmt.Errorf("--console-token: %w", err)
		}
	}
	if loopback {
		return c, nil
	}
	if c.guard.credentials, err = o.Load(); err != nil {
		return nil, fmt.Errorf("--console %s is no loopback address, so it is served by TLS alone: %w; or use 127.0.0.1 and reach it by ssh -L", o.Address, err)
	}
	return c, nil
}

// isLoopback reports whether only this host reaches an address to listen at.
func isLoopback(address string) (bool, error) {
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return false, fmt.Errorf("--console %s: %w: use ADDRESS:PORT", address, err)
	}
	return at.IP.IsLoopback(), nil
}

// Listen listens at a console's address.
func Listen(address string) (net.Listener, error) { return listen.TCP("serve the console", address) }

// Serve shows what source tells until ctx ends, and closes the listener.
func (c *Console) Serve(ctx context.Context, listener net.Listener, source Source) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	following := make(chan struct{})
	go func() { defer close(following); follow(ctx, source, c.now) }()
	defer func() { cancel(); <-following }()
	listener = listen.Bounded(listener, "console port", connectionsPerPeer, connectionsTotal, c.log)
	server := &http.Server{
		Handler: c.handler(source), ReadHeaderTimeout: api.HeaderTimeout, IdleTimeout: api.IdleTimeout, HTTP2: api.StreamHTTP2(),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    stdlog.New(io.Discard, "", 0), // of single connections, which anybody can break off
	}
	scheme := "http"
	if c.guard.credentials != nil {
		scheme = "https"
		config := c.guard.credentials.Browser(pki.Ctl)
		config.NextProtos = []string{"h2", "http/1.1"}
		listener = tls.NewListener(listener, config)
	}
	c.log.Info("console", "url", scheme+"://"+listener.Addr().String()+"/")
	err := api.ServeUntil(ctx, server, func() error { return server.Serve(listener) })
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
