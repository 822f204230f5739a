// Package listen has a daemon's TCP ports, and serves its metrics at one.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

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

// Bounds of the metrics port, which anybody in reach may connect to: a peer that takes all of its share leaves those of others alone.
const (
	metricsPerPeer = 16  // connections at once from an address
	metricsTotal   = 256 // from all

	metricsWriteTimeout = 30 * time.Second // from a request's header to the end of its answer
)

// metricsListener closes connections above the bounds as soon as they come.
type metricsListener struct {
	net.Listener

	mutex sync.Mutex
	peers map[netip.Addr]int // open connections
	total int
}

func limitMetrics(listener net.Listener) net.Listener {
	return &metricsListener{Listener: listener, peers: map[netip.Addr]int{}}
}

func (l *metricsListener) Accept() (net.Conn, error) {
	for {
		connection, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer := connection.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		if l.enter(peer) {
			return &metricsConnection{Conn: connection, leave: sync.OnceFunc(func() { l.leave(peer) })}, nil
		}
		connection.Close()
	}
}

func (l *metricsListener) enter(peer netip.Addr) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.total >= metricsTotal || l.peers[peer] >= metricsPerPeer {
		return false
	}
	l.total++
	l.peers[peer]++
	return true
}

func (l *metricsListener) leave(peer netip.Addr) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.total--
	if l.peers[peer]--; l.peers[peer] == 0 {
		delete(l.peers, peer)
	}
}

// metricsConnection gives its place back when it is closed.
type metricsConnection struct {
	net.Conn
	leave func()
}

func (c *metricsConnection) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
