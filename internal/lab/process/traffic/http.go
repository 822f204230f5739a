// HTTP over exactly one TCP connection, with a class for each kind of failure.
package traffic

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// ServerHeader is the response header with the name of the server.
const ServerHeader = "X-Server"

// httpConn is the connection, with what has to be read and written on it. It is not that of net/http's Transport, which gives up a
// connection whose writer is 50 ms late to say that it has written: on a busy machine connections would seem broken that are not.
type httpConn struct {
	wire     *watchedConn
	answers  *bufio.Reader
	requests *bufio.Writer
}

// writeBuffer is bytes of a request that are handed to TCP at a time.
const writeBuffer = 32 << 10

// exchangeHTTP opens one connection, makes the flow's requests on it and returns how it ended.
func (r *runner) exchangeHTTP(ctx context.Context, flow *Flow, source netip.Addr) Connection {
	result := Connection{Flow: flow.Name, Started: time.Now(), Source: source.String(), Class: Completed}
	connection, err := r.dialHTTP(ctx, flow, source)
	if err != nil {
		result.Class, result.Detail = classify(err, false), err.Error()
		return result
	}
	defer connection.wire.Close()
	defer context.AfterFunc(ctx, func() { connection.wire.Close() })()
	result.Source = connection.wire.LocalAddr().String()
	err = r.requests(ctx, flow, &result, func(request Request) error { return r.request(connection, flow, request, &result) })
	if err != nil {
		result.Class, result.Detail = classify(err, true), err.Error()
	}
	return result
}

// requests makes the requests of a connection, one after another, as long as they succeed.
func (r *runner) requests(ctx context.Context, flow *Flow, result *Connection, do func(Request) error) error {
	for {
		for _, request := range flow.Requests {
			r.pause(ctx, request.Pause)
			began := time.Now()
			if result.Requests == 0 && request.Pause == 0 {
				began = result.Started
			}
			if err := do(request); err != nil {
				return err
			}
			r.answered(began)
			result.Requests++
		}
		if !flow.Repeat || r.stopped() {
			return nil
		}
	}
}

func (r *runner) dialHTTP(ctx context.Context, flow *Flow, source netip.Addr) (*httpConn, error) {
	dialer := net.Dialer{
		Timeout: min(connectTimeout, r.plan.Stall), LocalAddr: &net.TCPAddr{IP: source.AsSlice()}, KeepAlive: -1,
	}
	dialer.SetMultipathTCP(flow.MPTCP)
	plain, err := dialer.DialContext(ctx, "tcp", flow.Target)
	if err != nil {
		return nil, err
	}
	if flow.MPTCP {
		if multipath, err := plain.(*net.TCPConn).MultipathTCP(); err != nil || !multipath {
			plain.Close()
			return nil, errors.Join(errors.New("the connection became plain TCP"), err)
		}
	}
	wire := &watchedConn{Conn: plain, stall: r.plan.Stall, received: r.received}
	return &httpConn{wire, bufio.NewReader(wire), bufio.NewWriterSize(wire, writeBuffer)}, nil
}

// request makes one request.
func (r *runner) request(connection *httpConn, flow *Flow, request Request, result *Connection) error {
	connection.wire.watch(true)
	message, err := newRequest(flow.Target, request)
	if err != nil {
		return err
	}
	if err := errors.Join(message.Write(connection.requests), connection.requests.Flush()); err != nil {
		return err
	}
	switch _, err := connection.answers.Peek(1); {
	case errors.Is(err, io.EOF):
		return &brokenError{Closed, "the server closed the connection and did not answer"}
	case err != nil:
		return err
	}
	response, err := http.ReadResponse(connection.answers, message)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := r.answer(response, response.Body, request, result); err != nil {
		return err
	}
	connection.wire.watch(false)
	return nil
}

// answer reads a response's body to its end and returns what is wrong; result gets the server and the bytes.
func (r *runner) answer(response *http.Response, body io.Reader, request Request, result *Connection) error {
	server := response.Header.Get(ServerHeader)
	if result.Server == "" {
		result.Server = server
		r.answeredBy(server)
	}
	if server != result.Server {
		return &brokenError{Moved, fmt.Sprintf("%s answered on a connection of %s", server, result.Server)}
	}
	length, err := io.Copy(io.Discard, body)
	result.Bytes += length
	if err != nil {
		return err
	}
	if response.StatusCode == http.StatusServiceUnavailable {
		return &brokenError{Refused, "status " + response.Status}
	}
	if response.StatusCode/100 != 2 {
		return &brokenError{WrongAnswer, "status " + response.Status}
	}
	if !request.Upload && request.Bytes != 0 && length != request.Bytes {
		return &brokenError{WrongAnswer, fmt.Sprintf("%d bytes instead of %d", length, request.Bytes)}
	}
	return nil
}

func newRequest(target string, request Request) (*http.Request, error) {
	method, body := http.MethodGet, io.Reader(nil)
	if request.Upload {
		method, body = http.MethodPut, io.LimitReader(zeros{}, request.Bytes)
	}
	message, err := http.NewRequest(method, "http://"+target+request.Path, body)
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	if request.Upload {
		message.ContentLength = request.Bytes
	} else if request.Bytes != 0 {
		message.Header.Set("Range", fmt.Sprintf("bytes=0-%d", request.Bytes-1))
	}
	return message, nil
}

type brokenError struct {
	class  Class
	detail string
}

func (e *brokenError) Error() string { return e.detail }

// classify turns the error of a connection into a class; connected says whether the handshake was done.
func classify(err error, connected bool) Class {
	var broken *brokenError
	switch {
	case errors.As(err, &broken):
		return broken.class
	case !connected && errors.Is(err, syscall.ECONNREFUSED):
		return ConnectRefused
	case !connected && isTimeout(err):
		return ConnectTimeout
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, net.ErrClosed):
		return Reset
	case isTimeout(err):
		return Stalled
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return Truncated
	default:
		return OtherError
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, os.ErrDeadlineExceeded)
}

// watchedConn fails a read or write that makes no progress for `stall` while a request is on its way.
// Between requests a connection may be idle as long as it likes.
type watchedConn struct {
	net.Conn
	stall    time.Duration
	received func(int)
	watching atomic.Bool
}

func (c *watchedConn) watch(on bool) {
	c.watching.Store(on)
	deadline := time.Time{}
	if on {
		deadline = time.Now().Add(c.stall)
	}
	_ = c.Conn.SetDeadline(deadline)
}

func (c *watchedConn) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	c.received(n)
	c.moved(n)
	return n, err
}

func (c *watchedConn) Write(from []byte) (int, error) {
	n, err := c.Conn.Write(from)
	c.moved(n)
	return n, err
}

func (c *watchedConn) moved(bytes int) {
	if bytes > 0 && c.watching.Load() {
		_ = c.Conn.SetDeadline(time.Now().Add(c.stall))
	}
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(into []byte) (int, error) {
	clear(into)
	return len(into), nil
}
