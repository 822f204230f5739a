package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

func serve(t *testing.T, s *Server) *Client {
	t.Helper()
	path := SocketPath(t.TempDir(), "default")
	listener, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return NewClient(path)
}

func TestClientReadsWhatTheServerAnswers(t *testing.T) {
	s := NewServer()
	want := Status{Role: "agent", Ready: true, Generation: 7, Config: Config{Path: "x.yaml", SHA256: "00"}}
	s.Handle("GET "+PathStatus, func(*http.Request) (any, error) { return want, nil })
	got, err := serve(t, s).Status(context.Background())
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestRefusalKeepsItsCodeAndMessage(t *testing.T) {
	s := NewServer()
	s.Handle("POST /v1/x", func(*http.Request) (any, error) { return nil, BadRequest("no server %q", "s9") })
	err := serve(t, s).Do(context.Background(), http.MethodPost, "/v1/x", struct{}{}, nil)
	var refused *Error
	if !errors.As(err, &refused) || refused.Code != 400 || refused.Message != `no server "s9"` {
		t.Fatalf("got %v", err)
	}
}

// A daemon that ends before it answers may have carried an order out; one that is not there has not.
//
// Promise: An order to a daemon that is not answered may have been carried out, and `ctl` says so.
func TestAnOrderWithoutAnAnswerMayHaveBeenCarriedOut(t *testing.T) {
	s := NewServer()
	dies := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	s.HandleRaw("/v1/x", http.HandlerFunc(dies))
	client, nobody := serve(t, s), NewClient(SocketPath(t.TempDir(), "default"))
	for what, c := range map[string]struct {
		client *Client
		method string
		code   connect.Code
	}{
		"an order":          {client, http.MethodPost, connect.CodeUnknown},
		"a question":        {client, http.MethodGet, connect.CodeUnavailable},
		"an order, nowhere": {nobody, http.MethodPost, connect.CodeUnavailable},
	} {
		if err := c.client.Do(t.Context(), c.method, "/v1/x", nil, nil); connect.CodeOf(err) != c.code || strings.Contains(err.Error(), "may or may not have been carried out") != (c.code == connect.CodeUnknown) {
			t.Errorf("%s: %v: %v", what, connect.CodeOf(err), err)
		}
	}
}

// Whoever asks the wrong daemon is told which it is, by a client of either API.
func TestWhatNoRouteIsForIsRefusedWithTheReason(t *testing.T) {
	s := NewServer()
	s.Handle("GET /v1/x", func(*http.Request) (any, error) { return nil, nil })
	s.Otherwise("this is another daemon")
	client := serve(t, s)
	for what, err := range map[string]error{
		"no such path":   client.Get(t.Context(), PathTrace, nil),
		"no such method": client.Do(t.Context(), http.MethodDelete, "/v1/x", nil, nil),
	} {
		if err == nil || err.Error() != "this is another daemon" {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := client.Fleet().ListServers(t.Context(), &ballastv1.ListServersRequest{})
	if connect.CodeOf(err) != connect.CodeUnimplemented || !strings.HasSuffix(err.Error(), "this is another daemon") {
		t.Errorf("no such service: %v", err)
	}
}

func TestOnlyOneLiveProcessServesAnInstance(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ctl.sock")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Listen(path); err == nil {
		second.Close()
		t.Fatal("a second listener was let in")
	}
	first.Close()
	third, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	third.Close()
}

// A process that was killed holds the lock until it has gone, as this one does: it is gone only when another asks.
func TestAKilledProcessThatIsNotGoneYetIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ctl.sock")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	closed := time.AfterFunc(5*lockInterval, func() { first.Close() })
	defer closed.Stop()
	second, err := Listen(path)
	if err != nil {
		t.Fatalf("after %v: %v", time.Since(before), err)
	}
	second.Close()
}

func TestSocketLeftByAKilledProcessIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ctl.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	listener, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
}
