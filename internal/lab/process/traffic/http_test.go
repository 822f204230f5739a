package traffic

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

const answered = "HTTP/1.1 200 OK\r\nX-Server: s1\r\nContent-Length: 5\r\n\r\nhello"

// serve lets one connection be served as the test likes, once its first request has been read.
func serve(t *testing.T, then func(conn *net.TCPConn, requests *bufio.Reader)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		requests := bufio.NewReader(conn)
		if readRequest(requests) == nil {
			then(conn.(*net.TCPConn), requests)
		}
	}()
	return listener.Addr().String()
}

func readRequest(requests *bufio.Reader) error {
	request, err := http.ReadRequest(requests)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, request.Body)
	return err
}

func TestEveryWayThatAConnectionEndsIsToldApart(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	both := []Request{{Path: "/", Bytes: 5}, {Path: "/", Bytes: 100_000, Upload: true}}
	for class, target := range map[Class]string{
		Completed: serve(t, func(conn *net.TCPConn, requests *bufio.Reader) {
			io.WriteString(conn, answered)
			if readRequest(requests) == nil {
				io.WriteString(conn, answered)
			}
		}),
		Closed: serve(t, func(conn *net.TCPConn, requests *bufio.Reader) {
			io.WriteString(conn, answered)
			readRequest(requests)
		}),
		Reset:     serve(t, func(conn *net.TCPConn, _ *bufio.Reader) { conn.SetLinger(0) }),
		Truncated: serve(t, func(conn *net.TCPConn, _ *bufio.Reader) { io.WriteString(conn, answered[:len(answered)-1]) }),
		WrongAnswer: serve(t, func(conn *net.TCPConn, _ *bufio.Reader) {
			fmt.Fprint(conn, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		}),
		Refused: serve(t, func(conn *net.TCPConn, _ *bufio.Reader) {
			fmt.Fprint(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
		}),
		Moved: serve(t, func(conn *net.TCPConn, requests *bufio.Reader) {
			io.WriteString(conn, answered)
			readRequest(requests)
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nX-Server: s2\r\nContent-Length: 0\r\n\r\n")
		}),
		Stalled:        serve(t, func(_ *net.TCPConn, requests *bufio.Reader) { readRequest(requests) }), // ends with the client
		ConnectRefused: closed.Addr().String(),
	} {
		r := &runner{plan: Plan{Stall: 30 * time.Second}, stopping: make(chan struct{}), progress: Progress{OpenByServer: map[string]int{}}}
		if class == Stalled {
			r.plan.Stall = 300 * time.Millisecond
		}
		end := r.exchangeHTTP(t.Context(), &Flow{Name: "test", Target: target, Requests: both}, netip.MustParseAddr("127.0.0.1"))
		if end.Class != class {
			t.Errorf("%s: ended as %s: %s", class, end.Class, end.Detail)
		}
		if class == Completed && (end.Server != "s1" || end.Requests != 2 || end.Bytes != 10) {
			t.Errorf("%+v", end)
		}
	}
}
