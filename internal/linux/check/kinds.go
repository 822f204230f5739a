package check

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/ballast-lb/ballast/internal/model"
)

const http2 = "h2" // as ALPN names it

var errNoHTTP2 = errors.New("TLS handshake: the server does not offer HTTP/2 (ALPN h2), which gRPC needs")

var errTimedOut = errors.New("timed out")

// maxAnswer bounds what is read of an HTTP answer, in bytes, and endOfAnswer how long its end is waited for.
const (
	maxAnswer   = 64 << 10
	endOfAnswer = 200 * time.Millisecond
)

// attempt makes one check.
func (p *Prober) attempt(ctx context.Context, t Target) (remarks Remarks, err error) {
	remarks, answered, err := p.ask(ctx, t)
	if remarks.Unanswered = !answered && errors.Is(err, errTimedOut); !remarks.Unanswered {
		remarks.SentBy = 0
	}
	return remarks, err
}

// ask makes one check. answered: there was a connection.
func (p *Prober) ask(ctx context.Context, t Target) (remarks Remarks, answered bool, err error) {
	if t.Health.Check == model.CheckExec {
		return Remarks{Direct: "an exec check connects as its program likes"}, false, p.options.Exec.run(ctx, t)
	}
	hello := t.Hello(p.options.Random)
	conn, remarks, err := p.connect(ctx, t, hello)
	if conn != nil {
		defer conn.Close()
	}
	if err != nil {
		return remarks, false, failure("connect", err)
	}
	// The end of ctx, be it the timeout or the end of the target, ends whatever waits for the connection.
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	switch t.Health.Check {
	case model.CheckTCP:
		return remarks, true, nil
	case model.CheckHTTP:
		return remarks, true, checkHTTP(conn, conn, t, "http")
	case model.CheckTLS, model.CheckHTTPS, model.CheckGRPCS:
		return remarks, true, p.checkInTLS(ctx, conn, t)
	case model.CheckGRPC:
		return remarks, true, checkGRPC(ctx, conn, t, insecure.NewCredentials())
	case model.CheckQUIC:
		return remarks, false, checkQUIC(conn, hello)
	case model.CheckUDP:
		return remarks, false, checkUDP(conn, &t.Health)
	case model.CheckDNS:
		return remarks, false, checkDNS(conn, &t.Health, hello)
	}
	return remarks, false, fmt.Errorf("check %s is not known here: upgrade this load balancer", t.Health.Check)
}

// connect opens the connection, by the way of traffic or straight. With a hello it is one by UDP, on which that has been sent.
func (p *Prober) connect(ctx context.Context, t Target, hello []byte) (conn net.Conn, remarks Remarks, err error) {
	if t.VIP.IsValid() {
		remarks.Direct = "no way to the VIP through the tunnel is set up"
	}
	if p.options.Dial != nil {
		conn, remarks, err = p.options.Dial(ctx, t, t.checkedPort(), hello)
		tried := conn != nil || err != nil || remarks.Direct == ""
		if !t.VIP.IsValid() {
			remarks.Direct = ""
		}
		if tried {
			return resetting(conn), remarks, err
		}
	}
	dialer, to := net.Dialer{KeepAlive: -1}, netip.AddrPortFrom(t.Address, t.checkedPort()).String()
	if hello != nil {
		if conn, err = dialer.DialContext(ctx, "udp", to); err != nil {
			return nil, remarks, err
		}
		_, err = conn.Write(hello)
		return conn, remarks, err
	}
	dialer.SetMultipathTCP(false)
	conn, err = dialer.DialContext(ctx, "tcp", to)
	return resetting(conn), remarks, err
}

// resetting makes Close a reset, which leaves nothing behind on this host.
func resetting(conn net.Conn) net.Conn {
	if tcp, ok := conn.(*net.TCPConn); ok && tcp != nil {
		tcp.SetLinger(0)
	}
	return conn
}

// closeInOrder makes Close of an HTTP connection a FIN, so that no application logs a reset, if the server has closed it first as the request
// asks: it is the server then that keeps the port waiting.
func closeInOrder(conn, raw net.Conn, answer *io.LimitedReader) {
	tcp, ok := raw.(*net.TCPConn)
	if !ok || conn.SetReadDeadline(time.Now().Add(endOfAnswer)) != nil {
		return
	}
	if _, err := io.Copy(io.Discard, answer); err != nil || answer.N == 0 {
		return
	}
	if conn != raw { // TLS has ended
		if _, err := raw.Read(make([]byte, 1)); err != io.EOF {
			return
		}
	}
	tcp.SetLinger(-1)
}

// checkInTLS makes the check that its kind stands for inside TLS.
func (p *Prober) checkInTLS(ctx context.Context, conn net.Conn, t Target) error {
	inside, err := p.handshake(ctx, conn, t)
	switch {
	case err != nil:
		return err
	case t.Health.Check == model.CheckHTTPS:
		return checkHTTP(inside, conn, t, "https")
	case t.Health.Check == model.CheckGRPCS:
		return checkGRPC(ctx, inside, t, insideTLS{insecure.NewCredentials()})
	}
	return nil
}

func (p *Prober) handshake(ctx context.Context, conn net.Conn, t Target) (inside *tls.Conn, err error) {
	name := t.Health.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	config := &tls.Config{ServerName: name, InsecureSkipVerify: name == "", RootCAs: p.options.Roots}
	switch t.Health.Check {
	case model.CheckHTTPS:
		config.NextProtos = []string{"http/1.1"}
	case model.CheckGRPCS:
		config.NextProtos = []string{http2}
	}
	inside = tls.Client(conn, config)
	if err := inside.HandshakeContext(ctx); err != nil {
		if t.Health.Check == model.CheckGRPCS && strings.HasSuffix(err.Error(), "tls: no application protocol") {
			return nil, errNoHTTP2
		}
		return nil, failure("TLS handshake", err)
	}
	if t.Health.Check == model.CheckGRPCS && inside.ConnectionState().NegotiatedProtocol != http2 {
		return nil, errNoHTTP2
	}
	return inside, nil
}

// checkHTTP asks on conn, which is raw or inside TLS on it.
func checkHTTP(conn, raw net.Conn, t Target, scheme string) error {
	host := t.Health.Host
	if host == "" {
		host = netip.AddrPortFrom(t.named(), t.checkedPort()).String()
	}
	request, err := http.NewRequest(http.MethodGet, scheme+"://"+host+t.Health.Path, nil)
	if err != nil {
		return fmt.Errorf("make the HTTP request: %w: correct health.host or health.path", err)
	}
	request.Close = true
	request.Header.Set("User-Agent", "ballast-check")
	if err := request.Write(conn); err != nil {
		return failure("send the HTTP request", err)
	}
	limited := &io.LimitedReader{R: conn, N: maxAnswer}
	reader := bufio.NewReader(limited)
	defer func() {
		if limited.N < maxAnswer { // it has answered
			closeInOrder(conn, raw, limited)
		}
	}()
	for {
		response, err := http.ReadResponse(reader, request)
		if err != nil {
			return failure("wait for the HTTP answer", err)
		}
		switch {
		case response.StatusCode < 200 && response.StatusCode != http.StatusSwitchingProtocols: // the answer is still to come (RFC 9110 15.2)
		case response.StatusCode < 200 || response.StatusCode > 399:
			return fmt.Errorf("HTTP %d", response.StatusCode)
		default:
			return nil
		}
	}
}

// ownFault tells failures that say nothing about the server: this host has run out of something, or does not make such checks.
func ownFault(err error) bool {
	return errors.Is(err, errNotAllowed) || slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EAGAIN},
		func(fault error) bool { return errors.Is(err, fault) })
}

// failure says in words what did not work.
func failure(doing string, err error) error {
	var timeout net.Error
	var errno syscall.Errno
	var inner *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s: %w", doing, errTimedOut)
	case errors.As(err, &errno):
		return fmt.Errorf("%s: %w", doing, errno)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%s: the server closed the connection", doing)
	case errors.As(err, &inner):
		return fmt.Errorf("%s: %w", doing, inner.Err)
	}
	if text, ok := strings.CutPrefix(err.Error(), "tls: "); ok {
		return fmt.Errorf("%s: %s", doing, text)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
