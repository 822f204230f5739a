// Package listen has a daemon's TCP ports, and serves its metrics at one.
package listen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
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
func ServeMetrics(ctx context.Context, log *slog.Logger, listener net.Listener, handler http.Handler, health func() []string) error {
	mux := http.NewServeMux()
	mux.Handle("GET "+api.PathMetrics, handler)
	mux.HandleFunc("GET "+api.PathHealth, func(w http.ResponseWriter, _ *http.Request) {
		api.ServeHealth(w, health())
	})
	return Serve(ctx, log, listener, mux)
}

// Serve answers at the metrics port until ctx ends.
func Serve(ctx context.Context, log *slog.Logger, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: api.HeaderTimeout, WriteTimeout: metricsWriteTimeout, IdleTimeout: api.IdleTimeout}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(Bounded(listener, "metrics port", metricsPerPeer, metricsTotal, log)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Bounds of the metrics port, which anybody in reach may connect to.
const (
	metricsPerPeer = 16  // connections at once from an IPv4 address, or an IPv6 /64
	metricsTotal   = 256 // from all

	metricsWriteTimeout = 30 * time.Second // from a request's header to the end of its answer
)

// Bounded keeps the connections of a TCP port within bounds. Above one the oldest connection of the peer that has the most is closed: it
// costs no other peer anything before as many share the port as there are connections, and whoever comes is served even then.
func Bounded(listener net.Listener, port string, perPeer, total int, log *slog.Logger) net.Listener {
	return &boundedListener{Listener: listener, port: port, perPeer: perPeer, total: total, log: log}
}

type boundedListener struct {
	net.Listener
	port           string // for the log
	perPeer, total int
	log            *slog.Logger
	once           sync.Once // that it is logged

	mutex sync.Mutex
	open  []*boundedConnection // the oldest first
}

func (l *boundedListener) Accept() (net.Conn, error) {
	connection, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &boundedConnection{Conn: connection, listener: l, peer: peerOf(connection.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())}
	if tooMany := l.enter(c); tooMany != nil {
		l.once.Do(func() {
			l.log.Warn(l.port+": more connections than are kept: the oldest of the client with the most are closed; logged once", "peer", tooMany.peer)
		})
		tooMany.Close()
	}
	return c, nil
}

// peerOf is whose share an address takes of.
func peerOf(address netip.Addr) netip.Prefix {
	bits := 64
	if address = address.Unmap(); address.Is4() {
		bits = 32
	}
	return netip.PrefixFrom(address.WithZone(""), bits).Masked()
}

// enter returns the connection that has to make room, nil if there is room.
func (l *boundedListener) enter(c *boundedConnection) *boundedConnection {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.open = append(l.open, c)
	have := map[netip.Prefix]int{}
	for _, o := range l.open {
		have[o.peer]++
	}
	if len(l.open) <= l.total && have[c.peer] <= l.perPeer {
		return nil
	}
	oldest := l.open[0]
	for _, o := range l.open {
		if have[o.peer] > have[oldest.peer] {
			oldest = o
		}
	}
	return oldest
}

func (l *boundedListener) leave(c *boundedConnection) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.open = slices.DeleteFunc(l.open, func(o *boundedConnection) bool { return o == c })
}

// boundedConnection gives its place back when it is closed.
type boundedConnection struct {
	net.Conn
	listener *boundedListener
	peer     netip.Prefix
}

func (c *boundedConnection) Close() error {
	defer c.listener.leave(c)
	return c.Conn.Close()
}
