package check

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ballast-lb/ballast/internal/model"
)

// overTLS serves HTTP inside TLS, by those versions of it; its certificate is for example.com.
func overTLS(t *testing.T, handler http.HandlerFunc, http2 bool) *httptest.Server {
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that end are what is tested here
	server.EnableHTTP2 = http2
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func TestGRPCSAsksTheHealthServiceInsideTLS(t *testing.T) {
	certified := overTLS(t, nil, true)
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server, status := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&certified.TLS.Certificates[0]))), grpchealth.NewServer()
	healthpb.RegisterHealthServer(server, status)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	ask := func(p *Prober, host, service, want string) {
		t.Helper()
		expect(t, p, target(listener.Addr().String(), model.Health{Check: model.CheckGRPCS, Service: service, Host: host}), want)
	}
	unverified, verified := New(Options{}), New(Options{Roots: roots})
	ask(unverified, "", "", "")
	ask(unverified, "example.com", "", "TLS handshake: failed to verify certificate")
	ask(verified, "example.com:8443", "", "")
	ask(verified, "example.net", "", "valid for example.com")
	ask(verified, "example.com", "shop", `no service "shop"`)
	status.SetServingStatus("shop", healthpb.HealthCheckResponse_NOT_SERVING)
	ask(verified, "example.com", "shop", "gRPC health: NOT_SERVING")
	status.SetServingStatus("shop", healthpb.HealthCheckResponse_SERVING)
	ask(verified, "example.com", "shop", "")
}

// A server that is no gRPC server, or not inside TLS, is unhealthy for the reason that it has.
func TestGRPCSSaysWhatAServerLacks(t *testing.T) {
	p, byGRPCS := New(Options{}), model.Health{Check: model.CheckGRPCS}
	var secure atomic.Bool
	other := overTLS(t, func(w http.ResponseWriter, r *http.Request) {
		secure.Store(r.TLS != nil) // the request says that it is by https
		http.NotFound(w, r)
	}, true)
	expect(t, p, target(other.Listener.Addr().String(), byGRPCS), "does not implement grpc.health.v1")
	if !secure.Load() {
		t.Error("the request does not say that it came inside TLS")
	}
	const noHTTP2 = "the server does not offer HTTP/2"
	old := overTLS(t, http.NotFound, false)
	expect(t, p, target(old.Listener.Addr().String(), byGRPCS), noHTTP2)
	silentAboutALPN, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: old.TLS.Certificates})
	must(t, err)
	t.Cleanup(func() { silentAboutALPN.Close() })
	go func() {
		for {
			connection, err := silentAboutALPN.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(io.Discard, connection); connection.Close() }()
		}
	}()
	expect(t, p, target(silentAboutALPN.Addr().String(), byGRPCS), noHTTP2)
	expect(t, p, target(answering(t, "not TLS at all"), byGRPCS), "does not look like a TLS handshake")
	expect(t, p, target(closed(t), byGRPCS), "connect: connection refused")
	expect(t, p, target(silent(t), model.Health{Check: model.CheckGRPCS, Timeout: soon}), "TLS handshake: timed out")
}
