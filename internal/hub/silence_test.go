// How long a controller bears peers that connect and say nothing, whatever their certificate.
package hub

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// served runs f with a way to connect to a controller's server, at a time of its own.
func served(t *testing.T, f func(t *testing.T, connect func() net.Conn, operator *tls.Config)) {
	synctest.Test(t, func(t *testing.T) {
		ca := fleettest.NewAuthority(t)
		listener, ended := apitest.NewPipes(), make(chan error)
		mux := http.NewServeMux()
		mux.HandleFunc("GET /once", func(http.ResponseWriter, *http.Request) {})
		mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		ctx, cancel := context.WithCancel(t.Context())
		server := ca.Issue(pki.Controller, "c1")
		go func() { ended <- Serve(ctx, listener, server, nil, mux, nil) }()
		f(t, listener.Connect, ca.Issue(pki.Ctl, "me").Client())
		cancel()
		<-ended
	})
}

func TestPeersThatSayNothingAreNotKept(t *testing.T) {
	const most = 15 * time.Second
	for name, protocol := range map[string]string{"before TLS": "", "after TLS": "http/1.1", "after TLS, HTTP/2": "h2"} {
		t.Run(name, func(t *testing.T) {
			served(t, func(t *testing.T, connect func() net.Conn, operator *tls.Config) {
				connection := connect()
				if protocol != "" {
					config := operator.Clone()
					config.NextProtos, config.ServerName = []string{protocol}, "c1"
					secure := tls.Client(connection, config)
					fleettest.Require(t, secure.HandshakeContext(t.Context()))
					connection = secure
				}
				defer connection.Close()
				dropped := make(chan struct{})
				go func() { io.Copy(io.Discard, connection); close(dropped) }()
				select {
				case <-dropped:
				case <-time.After(most):
					t.Errorf("kept for %v", most)
				}
			})
		})
	}
}

func TestConnectionsWithoutRequestsEndAndStreamsStay(t *testing.T) {
	served(t, func(t *testing.T, connect func() net.Conn, operator *tls.Config) {
		for path, stays := range map[string]bool{"once": false, "stream": true} {
			dropped := make(chan struct{})
			config := operator.Clone()
			config.NextProtos, config.ServerName = []string{"h2"}, "c1"
			transport := &http.Transport{ForceAttemptHTTP2: true, DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				secure := tls.Client(watched{Conn: connect(), closed: dropped}, config)
				return secure, secure.HandshakeContext(ctx)
			}}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://c1/"+path, nil)
			fleettest.Require(t, err)
			answer, err := transport.RoundTrip(request)
			fleettest.Require(t, err)
			select {
			case <-dropped:
				if stays {
					t.Error("a stream that nothing is said on was ended")
				}
			case <-time.After(4 * api.IdleTimeout):
				if !stays {
					t.Error("a peer that answers pings and asks for nothing was kept")
				}
			}
			answer.Body.Close()
			transport.CloseIdleConnections()
		}
	})
}

// watched tells when its user has closed it, as one does whose other end has gone.
type watched struct {
	net.Conn
	closed chan struct{}
}

func (w watched) Close() error {
	close(w.closed)
	return w.Conn.Close()
}
