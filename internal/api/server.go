package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

// What a server bears from those who connect and say nothing.
const (
	HeaderTimeout = 5 * time.Second // from the first byte of a connection or request to the last of its header
	IdleTimeout   = time.Minute     // without a request; streams are requests
)

// shutdownTimeout bounds how long answers under way may hold up the end of a daemon.
const shutdownTimeout = 2 * time.Second

// A Server is a set of routes. Add them all before Serve.
type Server struct {
	mux *http.ServeMux
}

// NewServer returns a server without routes.
func NewServer() *Server { return &Server{mux: http.NewServeMux()} }

// Handle answers pattern (as of http.ServeMux, "GET /v1/x") with the JSON of what f returns. An *Error chooses the
// status code; any other error is 500. f runs concurrently with itself.
func (s *Server) Handle(pattern string, f func(*http.Request) (any, error)) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		answer, err := f(r)
		code := http.StatusOK
		if err != nil {
			var refused *Error
			if !errors.As(err, &refused) {
				refused = &Error{Code: http.StatusInternalServerError, Message: err.Error()}
			}
			code, answer = refused.Code, refused
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(answer) // the client may have gone: nobody to tell
	})
}

// HandleChange is Handle for what changes something, and for dry runs of it (DryRun), which only tell.
func (s *Server) HandleChange(method, path string, f func(r *http.Request, dryRun bool) (any, error)) {
	s.Handle(method+" "+path, func(r *http.Request) (any, error) { return f(r, false) })
	s.Handle(method+" "+DryRun(path), func(r *http.Request) (any, error) { return f(r, true) })
}

// Otherwise has requests that no route is for refused with the reason: which daemon this is, and who serves what it does not.
func (s *Server) Otherwise(why string) { s.Refuse("/", why) }

// Refuse has requests for paths that begin with a prefix refused with the reason.
func (s *Server) Refuse(prefix, why string) {
	s.mux.HandleFunc(prefix, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		json.NewEncoder(w).Encode(struct {
			Error   string `json:"error"`
			Code    string `json:"code"` // these two for clients of ballast.v1.Fleet
			Message string `json:"message"`
		}{why, connect.CodeUnimplemented.String(), why})
	})
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// HandleRaw adds a handler that writes its own answer, for streams.
func (s *Server) HandleRaw(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

// Implementation constants. A process that was killed holds its lock until the kernel has taken its memory apart, on a busy machine for long.
const (
	lockPatience = 3 * time.Second
	lockInterval = 20 * time.Millisecond
)

// lockAlone takes a lock that no other process may hold.
func lockAlone(lock *os.File) (err error) {
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockInterval) {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) || !time.Now().Before(end) {
			return err
		}
	}
}

// Listen takes the socket of an instance: only one live process can hold it, and what a killed one left is removed.
// The directory is made when missing.
func Listen(path string) (net.Listener, error) {
	if err := MakeDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("make the directory of the daemon's socket: %w: run as root", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockAlone(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("listen on %s: another process serves this instance: stop it or use another --instance", path)
	}
	if err := os.Remove(endedPath(path)); err != nil && !errors.Is(err, os.ErrNotExist) {
		lock.Close()
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		lock.Close()
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		lock.Close()
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		lock.Close()
		return nil, err
	}
	return &lockedListener{listener, lock}, nil
}

// MakeDir makes a directory that others may enter, whatever the umask. One that is there keeps its mode.
func MakeDir(path string) error {
	const mode = 0o755
	err := os.Mkdir(path, mode)
	if errors.Is(err, os.ErrNotExist) {
		if err = MakeDir(filepath.Dir(path)); err == nil {
			err = os.Mkdir(path, mode)
		}
	}
	switch {
	case err == nil:
		return os.Chmod(path, mode)
	case errors.Is(err, os.ErrExist):
		return os.MkdirAll(path, mode) // which refuses what is no directory
	}
	return err
}

// lockedListener gives the lock back only after the socket is gone.
type lockedListener struct {
	net.Listener
	lock *os.File
}

func (l *lockedListener) Close() error {
	return errors.Join(l.Listener.Close(), l.lock.Close())
}

// Serve answers until ctx ends, then lets requests under way finish for a moment and closes the listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s.mux, ReadHeaderTimeout: HeaderTimeout, IdleTimeout: IdleTimeout,
		ConnContext: localCaller, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	return ServeUntil(ctx, server, func() error { return server.Serve(listener) })
}

// ServeUntil runs serve, which is one of server's ways to serve, until ctx ends, and then lets requests under way finish for a moment.
func ServeUntil(ctx context.Context, server *http.Server, serve func() error) error {
	finished := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(finished)
		deadline, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if server.Shutdown(deadline) != nil {
			server.Close()
		}
	})
	defer stop()
	if err := serve(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-finished
	return nil
}
