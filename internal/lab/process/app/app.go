// Package app is an application server of a lab: HTTP requests that cost a known amount of work on a server of known capacity.
//
//	GET /work?cost=MICROSECONDS[&bytes=N]    an answer after that much work
//	GET /hold?for=MICROSECONDS&bytes=N       an answer that takes that long whatever the load: a connection that lives
//	GET /load                                {"outstanding":3,"capacity":64,"answered":812,"failed":0}
//	PUT /speed?share=0.25                    from now on work is done at that share of the speed: something else has the rest
//	GET /name                                the server's name
package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ballast-lb/ballast/internal/lab/process/http3"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// Options describe a server.
type Options struct {
	Address string  `json:"address"` // host:port to serve on
	Server  string  `json:"server"`  // name
	Sleep   bool    `json:"sleep"`   // work is sleeping at Speed; else it burns CPU time, as much of it as the process gets
	Speed   float64 `json:"speed"`   // seconds of work that are done in a second
	Shared  bool    `json:"shared"`  // requests share the server (processor sharing); else they are served in the order they come
	Limit   int64   `json:"limit"`   // requests in the house beyond which new ones are refused with 503; 0: none

	HTTP3 *http3.Options `json:"http3"` // not nil: it serves the same over QUIC, too
}

// Implementation constants of answers that last.
const (
	pieces          = 8 // that such an answer is sent in, at least
	longestSilence  = time.Second
	shortestSilence = 20 * time.Millisecond
	answerMax       = 64 << 20
)

// server is a running one.
type server struct {
	Options
	worker                        *worker
	outstanding, answered, failed atomic.Int64
}

// Run serves until ctx ends.
func Run(ctx context.Context, options Options) error {
	if options.Speed <= 0 {
		return fmt.Errorf("run an application server of speed %g: give one above 0", options.Speed)
	}
	s := &server{Options: options, worker: newWorker(&options)}
	go s.worker.run(ctx)
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	listener, err := config.Listen(ctx, "tcp", options.Address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", options.Address, err)
	}
	both, ctx := errgroup.WithContext(ctx)
	if options.HTTP3 != nil {
		both.Go(func() error { return http3.Serve(ctx, *options.HTTP3, s.routes()) })
	}
	daemon := http.Server{Handler: s.routes(), ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = daemon.Close() })
	defer stop()
	both.Go(func() error {
		if err := daemon.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve on %s: %w", options.Address, err)
		}
		return nil
	})
	return both.Wait()
}

func (s *server) routes() http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /work", s.work)
	routes.HandleFunc("GET /hold", s.hold)
	routes.HandleFunc("GET /name", func(out http.ResponseWriter, _ *http.Request) { fmt.Fprintln(out, s.Server) })
	routes.HandleFunc("GET /load", s.load)
	routes.HandleFunc("PUT /speed", s.slow)
	return http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		out.Header().Set(traffic.ServerHeader, s.Server)
		routes.ServeHTTP(out, request)
	})
}

// load returns how busy the server is, in a format that docs/features/policies.md describes. Capacity is how many requests it can hold.
func (s *server) load(out http.ResponseWriter, _ *http.Request) {
	load := map[string]int64{"outstanding": s.outstanding.Load(), "answered": s.answered.Load(), "failed": s.failed.Load()}
	if s.Limit != 0 {
		load["capacity"] = s.Limit
	}
	_ = json.NewEncoder(out).Encode(load) // an error is the asker's, who has gone
}

// slow takes away all but a share of the speed. What burns CPU time cannot be slowed: its speed is what it gets.
func (s *server) slow(out http.ResponseWriter, request *http.Request) {
	share, err := strconv.ParseFloat(request.URL.Query().Get("share"), 64)
	if err != nil || !(share > 0 && share <= 1) || !s.Sleep {
		http.Error(out, "give a share over 0, at most 1, to a server whose work is sleeping", http.StatusBadRequest)
		return
	}
	s.worker.setSpeed(s.Speed * share)
}

func (s *server) work(out http.ResponseWriter, request *http.Request) {
	cost, bytes, err := parameters(request, "cost")
	if err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	defer s.outstanding.Add(-1)
	if s.outstanding.Add(1) > s.Limit && s.Limit != 0 {
		s.failed.Add(1)
		http.Error(out, "too many requests", http.StatusServiceUnavailable)
		return
	}
	if err := s.worker.do(request.Context(), cost); err != nil {
		s.failed.Add(1)
		return
	}
	s.answered.Add(1)
	_, _ = out.Write(make([]byte, bytes))
}

// hold sends an answer in pieces, spread over a time.
func (s *server) hold(out http.ResponseWriter, request *http.Request) {
	length, bytes, err := parameters(request, "for")
	if err != nil || bytes == 0 {
		http.Error(out, fmt.Sprintf("for and bytes are needed: %v", err), http.StatusBadRequest)
		return
	}
	s.outstanding.Add(1)
	defer s.outstanding.Add(-1)
	out.Header().Set("Content-Length", strconv.FormatInt(bytes, 10))
	silence := min(max(length/pieces, shortestSilence), longestSilence)
	parts := min(max(int64(length/silence), 1)+1, bytes)
	ticker := time.NewTicker(max(length/time.Duration(max(parts-1, 1)), time.Microsecond))
	defer ticker.Stop()
	flusher := http.NewResponseController(out)
	for part := int64(1); part <= parts; part++ {
		piece := make([]byte, bytes*part/parts-bytes*(part-1)/parts)
		if _, err := out.Write(piece); err != nil {
			s.failed.Add(1)
			return
		}
		if part == parts {
			break
		}
		_ = flusher.Flush() // the write of the next piece says what is wrong
		select {
		case <-ticker.C:
		case <-request.Context().Done():
			s.failed.Add(1)
			return
		}
	}
	s.answered.Add(1)
}

// parameters reads a time in microseconds and the length of the answer.
func parameters(request *http.Request, name string) (time.Duration, int64, error) {
	query := request.URL.Query()
	micros, err := strconv.ParseInt(query.Get(name), 10, 64)
	if err != nil || micros < 0 {
		return 0, 0, fmt.Errorf("%s=%q is not a number of microseconds", name, query.Get(name))
	}
	bytes := int64(0)
	if text := query.Get("bytes"); text != "" {
		if bytes, err = strconv.ParseInt(text, 10, 64); err != nil || bytes < 0 || bytes > answerMax {
			return 0, 0, fmt.Errorf("bytes=%q is not a number from 0 to %d", text, answerMax)
		}
	}
	return time.Duration(micros) * time.Microsecond, bytes, nil
}
