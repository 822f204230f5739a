package check

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// closing serves one check after the other: it answers, closes its side if it is to, and tells how the client's side ends.
func closing(t *testing.T, secure *tls.Config, answer string, closes bool) (address string, ends <-chan error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	told := make(chan error, 1)
	go func() {
		for {
			raw, err := listener.Accept()
			if err != nil {
				return
			}
			raw.SetDeadline(time.Now().Add(patience))
			conn := raw
			if secure != nil {
				conn = tls.Server(raw, secure)
			}
			conn.Read(make([]byte, 4096))
			_, wrote := io.WriteString(conn, answer)
			if closes {
				if secure != nil {
					conn.(*tls.Conn).CloseWrite()
				}
				raw.(*net.TCPConn).CloseWrite()
			}
			_, read := io.Copy(io.Discard, raw)
			told <- errors.Join(wrote, read)
			raw.Close()
		}
	}()
	return listener.Addr().String(), told
}

// waiting counts the connections to an address that wait on this host for late packets of theirs (TIME-WAIT), at the client's end.
func waiting(t *testing.T, address string) (count int) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/net/tcp")
	must(t, err)
	port := target(address, model.Health{}).Port
	for _, line := range strings.Split(string(table), "\n") {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[3] == "06" && strings.HasSuffix(fields[2], hexPort(port)) {
			count++
		}
	}
	return count
}

func hexPort(port uint16) string {
	const digits = "0123456789ABCDEF"
	return ":" + string([]byte{digits[port>>12], digits[port>>8&15], digits[port>>4&15], digits[port&15]})
}

// Public: haproxy/haproxy#560 (checks end by RST, which servers log).
func TestHTTPChecksEndByFINAndLeaveNoPortWaiting(t *testing.T) {
	const long = 8 << 20
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	for _, test := range []struct {
		what, answer, says string
		closes, reset      bool
	}{
		{"an answer", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "", true, false},
		{"an answer that is bad", "HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno", "HTTP 503", true, false},
		{"a body without an end of its own", "HTTP/1.1 200 OK\r\n\r\nok", "", true, false},
		{"a server that closes after the client only", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "", false, true},
		{"a long body, more than sockets hold", fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", 4*long, strings.Repeat("long", long)), "", true, true},
		{"no HTTP", "what?", "malformed", true, false},
	} {
		for _, kind := range []model.Check{model.CheckHTTP, model.CheckHTTPS} {
			secure := certified.TLS
			if kind == model.CheckHTTP {
				secure = nil
			}
			address, ends := closing(t, secure, test.answer, test.closes)
			expect(t, New(Options{}), target(address, model.Health{Check: kind, Path: "/"}), test.says)
			select {
			case err := <-ends:
				if reset := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE); reset != test.reset {
					t.Errorf("%s, %s: the connection ends with %v, by a reset: %v", kind, test.what, err, reset)
				}
			case <-time.After(patience):
				t.Fatalf("%s, %s: the connection does not end", kind, test.what)
			}
			if count := waiting(t, address); count > 0 {
				t.Errorf("%s, %s: %d ports of this host wait", kind, test.what, count)
			}
		}
	}
}
