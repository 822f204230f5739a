package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"testing"
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
