// How long a server bears those who connect and say nothing.
package api_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
)

func TestWhoeverSaysNothingIsNotKept(t *testing.T) {
	for name, c := range map[string]struct {
		says  string
		after time.Duration
	}{
		"nothing":           {"", api.HeaderTimeout},
		"half a request":    {"GET /once HTTP/1.1\r\nHost: x\r\n", api.HeaderTimeout},
		"a request":         {"GET /once HTTP/1.1\r\nHost: x\r\n\r\n", api.IdleTimeout},
		"a request for all": {"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, listener, ended := api.NewServer(), apitest.NewPipes(), make(chan error)
				s.Handle("GET /once", func(*http.Request) (any, error) { return 1, nil })
				s.HandleRaw("GET /stream", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.(http.Flusher).Flush()
					<-r.Context().Done()
				}))
				ctx, cancel := context.WithCancel(t.Context())
				go func() { ended <- s.Serve(ctx, listener) }()
				mine := listener.Connect()
				dropped, began := make(chan time.Duration, 1), time.Now()
				go func() {
					io.Copy(io.Discard, bufio.NewReader(mine))
					dropped <- time.Since(began)
				}()
				io.WriteString(mine, c.says)
				select {
				case after := <-dropped:
					if after != c.after {
						t.Errorf("dropped after %v, not %v", after, c.after)
					}
				case <-time.After(time.Hour):
					if c.after != 0 {
						t.Error("kept for an hour")
					}
				}
				cancel()
				mine.Close()
				<-ended
			})
		})
	}
}
