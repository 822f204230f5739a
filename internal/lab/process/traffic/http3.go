// HTTP/3 over exactly one QUIC connection, from a client whose address may change under way.
package traffic

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// keepAlive is between PINGs: a client that only receives does not notice that its address has changed until it sends.
const keepAlive = 500 * time.Millisecond

// exchangeHTTP3 opens one connection, makes the flow's requests on it and returns how it ended.
func (r *runner) exchangeHTTP3(ctx context.Context, flow *Flow, source netip.Addr) Connection {
	result := Connection{Flow: flow.Name, Started: time.Now(), Source: source.String(), Class: Completed}
	fail := func(err error, connected bool) Connection {
		result.Class, result.Detail = classifyQUIC(err, connected), err.Error()
		return result
	}
	target, err := net.ResolveUDPAddr("udp", flow.Target)
	if err != nil {
		return fail(err, false)
	}
	socket, err := newMovingSocket(source)
	if err != nil {
		return fail(err, false)
	}
	transport := &quic.Transport{Conn: socket}
	defer func() { _ = transport.Close(); _ = socket.Close() }()
	dialing, cancel := context.WithTimeout(ctx, connectTimeout)
	security := &tls.Config{InsecureSkipVerify: true, ServerName: "lab", NextProtos: []string{http3.NextProtoH3}}
	if flow.Early {
		security.ClientSessionCache = r.sessions
	}
	connection, err := transport.DialEarly(dialing, target, security,
		&quic.Config{MaxIdleTimeout: r.plan.Stall, HandshakeIdleTimeout: connectTimeout, KeepAlivePeriod: keepAlive})
	if err == nil && !flow.Early {
		select {
		case <-connection.HandshakeComplete():
		case <-dialing.Done():
			err = context.Cause(dialing)
		case <-connection.Context().Done():
			err = context.Cause(connection.Context())
		}
	}
	cancel()
	if err != nil {
		return fail(err, false)
	}
	defer connection.CloseWithError(0, "")
	result.Source = socket.LocalAddr().String()
	moving, stop := context.WithCancel(ctx)
	defer stop()
	if flow.Move > 0 {
		go r.move(moving, flow, connection, socket, source)
	}
	client := (&http3.Transport{}).NewClientConn(connection)
	err = r.requests(ctx, flow, &result, func(request Request) error { return r.request3(ctx, client, flow, request, &result) })
	if result.Requests >= len(flow.Requests) {
		result.Early, result.LongClientHello = firstFlight(connection, socket)
	}
	if err != nil {
		return fail(err, true)
	}
	return result
}

// firstFlight describes a connection's first flight, once it has been answered.
func firstFlight(connection *quic.Conn, socket *movingSocket) (early, long bool) {
	state := connection.ConnectionState()
	return state.Used0RTT, !state.Used0RTT && state.TLS.CurveID == tls.X25519MLKEM768 && socket.unanswered.Load() > 1
}

// request3 makes one request, which fails when nothing of it has moved for `stall`.
func (r *runner) request3(ctx context.Context, client *http3.ClientConn, flow *Flow, request Request, result *Connection) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(r.plan.Stall, func() { cancel(&brokenError{Stalled, "no progress"}) })
	defer stalled.Stop()
	watch := func(body io.ReadCloser, received func(int)) io.ReadCloser {
		return watchedBody{body, func(n int) {
			received(n)
			stalled.Reset(r.plan.Stall)
		}}
	}
	message, err := newRequest(flow.Target, request)
	if err != nil {
		return err
	}
	message.URL.Scheme = "https"
	if flow.Early && !request.Upload {
		message.Method = http3.MethodGet0RTT
	}
	if request.Upload {
		message.Body = watch(message.Body, func(int) {})
	}
	response, err := client.RoundTrip(message.WithContext(ctx))
	if err != nil {
		return cmpCause(ctx, err)
	}
	defer response.Body.Close()
	if err := r.answer(response, watch(response.Body, r.received), request, result); err != nil {
		return cmpCause(ctx, err)
	}
	return nil
}

// cmpCause is why the context ended, if it has, else err.
func cmpCause(ctx context.Context, err error) error {
	var broken *brokenError
	if errors.As(context.Cause(ctx), &broken) {
		return broken
	}
	return err
}

type watchedBody struct {
	io.ReadCloser
	moved func(int)
}

func (b watchedBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if n > 0 {
		b.moved(n)
	}
	return n, err
}

// classifyQUIC turns the error of a connection into a class; connected says whether the handshake was done.
func classifyQUIC(err error, connected bool) Class {
	var reset *quic.StatelessResetError
	var application *quic.ApplicationError
	var transport *quic.TransportError
	var layer *http3.Error
	switch {
	case !connected && (errors.Is(err, context.DeadlineExceeded) || isTimeout(err)):
		return ConnectTimeout
	case isTimeout(err): // which is net.ErrClosed, too
		return Stalled
	case errors.As(err, &reset):
		return Reset
	case errors.As(err, &application), errors.As(err, &transport), errors.As(err, &layer):
		return Closed
	}
	return classify(err, connected)
}

// move changes the client's address now and then: under QUIC's feet, as a NAT's does, or by a migration that QUIC knows of.
func (r *runner) move(ctx context.Context, flow *Flow, connection *quic.Conn, socket *movingSocket, source netip.Addr) {
	for {
		r.pause(ctx, flow.Move)
		if ctx.Err() != nil || r.stopped() {
			return
		}
		if !flow.Migrate {
			if socket.rebind(source) == nil { // where there is no port now, it stays
				r.moved()
			}
			continue
		}
		if err := r.migrate(ctx, connection, source); err == nil {
			r.moved()
		}
	}
}

// migrate goes on from another socket (RFC 9000 9). It lives as long as the connection.
func (r *runner) migrate(ctx context.Context, connection *quic.Conn, source netip.Addr) error {
	socket, err := newMovingSocket(source)
	if err != nil {
		return err
	}
	transport := &quic.Transport{Conn: socket}
	context.AfterFunc(connection.Context(), func() { _ = transport.Close(); _ = socket.Close() })
	path, err := connection.AddPath(transport)
	if err != nil {
		return err
	}
	if err := path.Probe(ctx); err != nil {
		return err
	}
	return path.Switch()
}

func (r *runner) moved() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.progress.Moved++
}

// movingSocket is a socket whose local port changes while it is in use.
type movingSocket struct {
	mutex   sync.Mutex
	current *net.UDPConn
	closed  bool

	answered   atomic.Bool
	unanswered atomic.Int64 // datagrams that were sent before the first came
}

func newMovingSocket(source netip.Addr) (*movingSocket, error) {
	s := &movingSocket{}
	return s, s.rebind(source)
}

// rebind goes on with another port.
func (s *movingSocket) rebind(source netip.Addr) error {
	next, err := net.ListenUDP("udp", &net.UDPAddr{IP: source.AsSlice()})
	if err != nil {
		return err
	}
	s.mutex.Lock()
	before, closed := s.current, s.closed
	if !closed {
		s.current = next
	}
	s.mutex.Unlock()
	if closed {
		return next.Close()
	}
	if before != nil {
		return before.Close()
	}
	return nil
}

func (s *movingSocket) now() *net.UDPConn {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.current
}

func (s *movingSocket) ReadFrom(into []byte) (int, net.Addr, error) {
	for {
		socket := s.now()
		n, from, err := socket.ReadFrom(into)
		if err != nil && socket != s.now() {
			continue
		}
		s.answered.Store(s.answered.Load() || err == nil)
		return n, from, err
	}
}

func (s *movingSocket) WriteTo(content []byte, to net.Addr) (int, error) {
	if !s.answered.Load() {
		s.unanswered.Add(1)
	}
	for {
		socket := s.now()
		n, err := socket.WriteTo(content, to)
		if err != nil && socket != s.now() {
			continue
		}
		return n, err
	}
}

func (s *movingSocket) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.closed = true
	return s.current.Close()
}

func (s *movingSocket) LocalAddr() net.Addr                { return s.now().LocalAddr() }
func (s *movingSocket) SetDeadline(t time.Time) error      { return s.now().SetDeadline(t) }
func (s *movingSocket) SetReadDeadline(t time.Time) error  { return s.now().SetReadDeadline(t) }
func (s *movingSocket) SetWriteDeadline(t time.Time) error { return s.now().SetWriteDeadline(t) }
