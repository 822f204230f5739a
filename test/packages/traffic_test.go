// A client that is never idle: one connection that lasts, and a stream of requests on connections of their own.
package packages

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const (
	echoAddress = "198.51.100.10:7"
	httpAddress = "http://198.51.100.10/"

	interval = 50 * time.Millisecond // between two messages, and between two requests
	limit    = 30 * time.Second      // until a message or request counts as lost
)

// traffic goes on until stop.
type traffic struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	messages, requests atomic.Int64 // that were answered
	mutex              sync.Mutex
	lost               []error
	slowest            map[string]time.Duration // since the last look, of messages and of requests
}

func listen(space *netspace.Space, address string) (listener net.Listener, err error) {
	err = space.Do(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	return listener, err
}

// serve answers on s1 until the test ends.
func (m *machine) serve() {
	echoes, err := listen(m.server, ":7")
	m.must(err)
	m.t.Cleanup(func() { echoes.Close() })
	go func() {
		for {
			connection, err := echoes.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				_, _ = io.Copy(connection, connection)
			}()
		}
	}()
	web, err := listen(m.server, ":80")
	m.must(err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "s1") })}
	go server.Serve(web)
	m.t.Cleanup(func() { server.Close() })
}

func (m *machine) dial(ctx context.Context, network, address string) (connection net.Conn, err error) {
	err = m.client.Do(func() (err error) {
		connection, err = (&net.Dialer{Timeout: limit}).DialContext(ctx, network, address)
		return err
	})
	return connection, err
}

// begin connects and sends requests until stop.
func (m *machine) begin() *traffic {
	m.t.Helper()
	connection, err := m.dial(context.Background(), "tcp4", echoAddress)
	m.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	f := &traffic{cancel: cancel, slowest: map[string]time.Duration{}}
	m.t.Cleanup(f.stop)
	f.running.Go(func() {
		defer connection.Close()
		f.repeat(ctx, "message", &f.messages, func() error { return echo(connection, uint64(f.messages.Load())) })
	})
	client := &http.Client{Timeout: limit, Transport: &http.Transport{DialContext: m.dial, DisableKeepAlives: true}}
	f.running.Go(func() {
		f.repeat(ctx, "request", &f.requests, func() error {
			response, err := client.Get(httpAddress)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			_, err = io.Copy(io.Discard, response.Body)
			return err
		})
	})
	return f
}

func echo(connection net.Conn, number uint64) error {
	if err := connection.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	var message [8]byte
	binary.BigEndian.PutUint64(message[:], number)
	if _, err := connection.Write(message[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(connection, message[:]); err != nil {
		return err
	}
	if got := binary.BigEndian.Uint64(message[:]); got != number {
		return fmt.Errorf("answered %d", got)
	}
	return nil
}

func (f *traffic) repeat(ctx context.Context, what string, answered *atomic.Int64, do func() error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		err := do()
		took := time.Since(began)
		f.mutex.Lock()
		f.slowest[what] = max(f.slowest[what], took)
		if err != nil {
			f.lost = append(f.lost, fmt.Errorf("%s %d: %w", what, answered.Load(), err))
		}
		f.mutex.Unlock()
		if err == nil {
			answered.Add(1)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// unharmed waits until both have been answered since, and fails if anything was lost before.
func (m *machine) unharmed(f *traffic, what string) {
	m.t.Helper()
	messages, requests := f.messages.Load(), f.requests.Load()
	m.await("traffic goes on", func() error {
		f.mutex.Lock()
		lost, slowest := f.lost, maps.Clone(f.slowest)
		f.mutex.Unlock()
		if len(lost) > 0 {
			m.t.Fatalf("%s: %d lost, at first: %v\n%s", what, len(lost), lost[0], m.journal())
		}
		if f.messages.Load() < messages+10 || f.requests.Load() < requests+10 {
			return fmt.Errorf("%d messages and %d requests", f.messages.Load(), f.requests.Load())
		}
		m.t.Logf("%s: %d messages on one connection and %d requests, 0 lost; the slowest since: %v", what, f.messages.Load(), f.requests.Load(), slowest)
		return nil
	})
	f.mutex.Lock()
	clear(f.slowest)
	f.mutex.Unlock()
}

func (f *traffic) stop() {
	f.cancel()
	f.running.Wait()
}
