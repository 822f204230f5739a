package traffic

import (
	"context"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// server3 answers the first request of an HTTP/3 connection, and the others as the test likes.
type server3 struct {
	http3.Server
	socket   net.PacketConn
	requests atomic.Int64
}

func serve3(t *testing.T, then func(*server3, http.ResponseWriter, *http.Request)) *server3 {
	t.Helper()
	s := &server3{}
	s.Handler = http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if s.requests.Add(1) > 1 {
			then(s, out, request)
			return
		}
		out.Header().Set(ServerHeader, "s1")
		_, _ = io.WriteString(out, "hello")
	})
	s.listen(t, "127.0.0.1:0")
	return s
}

// listen serves at an address. All transports have the same key of stateless resets.
func (s *server3) listen(t *testing.T, address string) {
	t.Helper()
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Error(err)
		return
	}
	https := httptest.NewUnstartedServer(nil)
	https.StartTLS()
	defer https.Close()
	transport := &quic.Transport{Conn: socket, StatelessResetKey: &quic.StatelessResetKey{1}}
	listener, err := transport.ListenEarly(http3.ConfigureTLSConfig(&tls.Config{Certificates: https.TLS.Certificates}), nil)
	if err != nil {
		t.Error(err)
		return
	}
	s.socket = socket
	t.Cleanup(func() { transport.Close(); socket.Close() })
	go func() { _ = s.ServeListener(listener) }()
}

const (
	shortStall = 600 * time.Millisecond
	upload     = 4 << 20 // more than QUIC sends before the server has read some of it
)

func TestEveryWayThatAnHTTP3ConnectionEndsIsToldApart(t *testing.T) {
	silent := func(_ *server3, _ http.ResponseWriter, request *http.Request) { <-request.Context().Done() }
	for _, one := range []struct {
		what  string
		class Class
		then  func(*server3, http.ResponseWriter, *http.Request)
	}{
		{"answers", Completed, func(_ *server3, out http.ResponseWriter, request *http.Request) {
			_, _ = io.Copy(io.Discard, request.Body)
			out.Header().Set(ServerHeader, "s1")
			_, _ = io.WriteString(out, "hello")
		}},
		{"reads for longer than a stall", Completed, func(_ *server3, out http.ResponseWriter, request *http.Request) {
			piece, ticks := make([]byte, upload/100), time.NewTicker(2*shortStall/100)
			defer ticks.Stop()
			for {
				if _, err := io.ReadFull(request.Body, piece); err != nil {
					break
				}
				<-ticks.C
			}
			out.Header().Set(ServerHeader, "s1")
			_, _ = io.WriteString(out, "hello")
		}},
		{"another server", Moved, func(_ *server3, out http.ResponseWriter, _ *http.Request) { out.Header().Set(ServerHeader, "s2") }},
		{"busy", Refused, func(_ *server3, out http.ResponseWriter, _ *http.Request) {
			out.Header().Set(ServerHeader, "s1")
			out.WriteHeader(http.StatusServiceUnavailable)
		}},
		{"does not answer", Stalled, silent},
		{"has gone", Stalled, func(s *server3, _ http.ResponseWriter, _ *http.Request) { s.socket.Close() }},
		{"closes", Closed, func(s *server3, _ http.ResponseWriter, request *http.Request) {
			go s.Close() // it waits for this request
			<-request.Context().Done()
		}},
		{"starts again", Reset, func(s *server3, _ http.ResponseWriter, request *http.Request) {
			s.socket.Close()
			s.listen(t, s.socket.LocalAddr().String())
			<-request.Context().Done()
		}},
	} {
		t.Run(one.what, func(t *testing.T) {
			s := serve3(t, one.then)
			r := &runner{plan: Plan{Stall: 30 * time.Second}, stopping: make(chan struct{}), progress: Progress{OpenByServer: map[string]int{}}}
			if one.class == Stalled || one.what == "reads for longer than a stall" {
				r.plan.Stall = shortStall
			}
			flow := &Flow{Name: "test", Target: s.socket.LocalAddr().String(), HTTP3: true,
				Requests: []Request{{Path: "/", Bytes: 5}, {Path: "/", Bytes: upload, Upload: true}}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			end := r.exchangeHTTP3(ctx, flow, netip.MustParseAddr("127.0.0.1"))
			if end.Class != one.class || end.Server != "s1" {
				t.Errorf("ended as %s: %s", end.Class, end.Detail)
			}
			if end.Class == Completed && (end.Requests != 2 || end.Bytes != 10) {
				t.Errorf("%+v", end)
			}
		})
	}
}

func TestErrorsOfQUICHaveTheirClass(t *testing.T) {
	for _, one := range []struct {
		err       error
		connected bool
		class     Class
	}{
		{&quic.HandshakeTimeoutError{}, false, ConnectTimeout}, {context.DeadlineExceeded, false, ConnectTimeout},
		{&quic.IdleTimeoutError{}, true, Stalled}, {&quic.StatelessResetError{}, true, Reset},
		{&quic.ApplicationError{Remote: true}, true, Closed}, {&quic.TransportError{Remote: true}, true, Closed},
	} {
		if class := classifyQUIC(one.err, one.connected); class != one.class {
			t.Errorf("%v: %s, not %s", one.err, class, one.class)
		}
	}
}

func TestTheServerSeesItsClientMove(t *testing.T) {
	for _, how := range []struct {
		every   time.Duration
		migrate bool
	}{{}, {20 * time.Millisecond, false}, {20 * time.Millisecond, true}} {
		var mutex sync.Mutex
		requests, places := 0, map[netip.AddrPort]bool{}
		stopping := make(chan struct{})
		stop := sync.OnceFunc(func() { close(stopping) })
		s := serve3(t, func(_ *server3, out http.ResponseWriter, request *http.Request) {
			mutex.Lock()
			defer mutex.Unlock()
			requests++
			places[netip.MustParseAddrPort(request.RemoteAddr)] = true
			if len(places) > 10 || how.every == 0 && requests > 50 {
				stop()
			}
			out.Header().Set(ServerHeader, "s1")
		})
		r := &runner{plan: Plan{Stall: 30 * time.Second}, random: rand.New(rand.NewPCG(1, 1)),
			stopping: stopping, progress: Progress{OpenByServer: map[string]int{}}}
		flow := &Flow{Name: "test", Target: s.socket.LocalAddr().String(), HTTP3: true, Move: how.every, Migrate: how.migrate,
			Requests: []Request{{Path: "/", Pause: 5 * time.Millisecond}}, Repeat: true}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		end := r.exchangeHTTP3(ctx, flow, netip.MustParseAddr("127.0.0.1"))
		if stays := how.every == 0; end.Class != Completed || stays != (r.progress.Moved == 0) || stays != (len(places) == 1) {
			t.Errorf("%+v: %+v, seen at %v", how, end, places)
		}
	}
}
