package nodeclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/pki"
)

// A controller whose clock is wrong, or that knows another authority, says no more than TLS lets it: what that means is said, and stays said though most
// attempts end by a broken connection.
func TestARefusedCertificateIsNamedAsTheReason(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{pki.Init(dir, pki.DefaultAuthorityLife, false), pki.Issue(dir, pki.Request{Role: pki.Controller, Name: "c1"}),
		pki.Issue(dir, pki.Request{Role: pki.LB, Name: "lb1"})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	credentials := map[string]*pki.Credentials{}
	for name, role := range map[string]pki.Role{"c1": pki.Controller, "lb1": pki.LB} {
		loaded, err := pki.Load(dir, name, role)
		if err != nil {
			t.Fatal(err)
		}
		credentials[name] = loaded
	}
	controller := httptest.NewUnstartedServer(http.NotFoundHandler())
	controller.EnableHTTP2 = true
	controller.TLS = credentials["c1"].Server()
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "c1.crt"), filepath.Join(dir, "c1.key"))
	if err != nil {
		t.Fatal(err)
	}
	controller.TLS.Certificates = []tls.Certificate{certificate} // or httptest has one of its own
	controller.TLS.VerifyConnection = func(tls.ConnectionState) error { return errors.New("not by our clock") }
	controller.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	controller.StartTLS()
	defer controller.Close()

	s := New(Options{Controllers: []string{controller.Listener.Addr().String()}, Credentials: credentials["lb1"], Log: slog.New(slog.DiscardHandler),
		Hello: func() *ballastv1.Hello { return &ballastv1.Hello{} }})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	defer running.Wait()
	defer stop()
	const want = "it refuses this node's certificate"
	await.Nil(t, "the reason", func() error {
		if problem := s.Problem(false); !strings.Contains(problem, want) {
			return fmt.Errorf("%s", problem)
		}
		return nil
	})
	s.miss(controller.Listener.Addr().String(), errors.New("broken pipe"))
	if problem := s.Problem(false); !strings.Contains(problem, "broken pipe; at ") || !strings.Contains(problem, want) {
		t.Errorf("after the next attempt: %s", problem)
	}
}
