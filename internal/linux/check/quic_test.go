package check

import (
	"crypto/tls"
	"net"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/ballast-lb/ballast/internal/model"
)

func byQUIC() model.Health { return model.Health{Check: model.CheckQUIC} }

func bind(t *testing.T) net.PacketConn {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { socket.Close() })
	return socket
}

func TestAServerOfQUICIsHealthy(t *testing.T) {
	https := httptest.NewUnstartedServer(nil)
	https.StartTLS()
	defer https.Close()
	socket := bind(t)
	listener, err := quic.Listen(socket, &tls.Config{Certificates: https.TLS.Certificates, NextProtos: []string{"h3"}}, nil)
	must(t, err)
	defer listener.Close()
	expect(t, New(Options{}), target(socket.LocalAddr().String(), byQUIC()), "")
}

func TestWhatIsNoServerOfQUICIsUnhealthy(t *testing.T) {
	p := New(Options{})
	gone := bind(t)
	must(t, gone.Close())
	expect(t, p, target(gone.LocalAddr().String(), byQUIC()), "wait for a list of QUIC versions: connection refused")

	silence := byQUIC()
	silence.Timeout = model.Duration(100 * time.Millisecond)
	expect(t, p, target(bind(t).LocalAddr().String(), silence), "wait for a list of QUIC versions: timed out")

	for _, answer := range []func(hello []byte) []byte{
		func(hello []byte) []byte { return hello },
		func([]byte) []byte { return []byte{0x80} },
		func(hello []byte) []byte { // as to somebody else
			return slices.Concat([]byte{0x80, 0, 0, 0, 0, 8}, make([]byte, 8), hello[5:14], []byte{0, 0, 0, 1})
		},
		func(hello []byte) []byte { // a short header
			return slices.Concat([]byte{0x40, 0, 0, 0, 0}, hello[14:23], hello[5:14], []byte{0, 0, 0, 1})
		},
	} {
		socket := bind(t)
		go func() {
			hello := make([]byte, 2048)
			if n, from, err := socket.ReadFrom(hello); err == nil {
				_, _ = socket.WriteTo(answer(hello[:n]), from)
			}
		}()
		expect(t, p, target(socket.LocalAddr().String(), byQUIC()), errNoVersions.Error())
	}
}
