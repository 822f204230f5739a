package console

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// Implementation constants of looks: one for all watchers, and no more of a CPU than a twentieth.
const (
	lookPeriod   = time.Second
	lookCost     = 20
	writeTimeout = 10 * time.Second // of one event
)

// broadcast has the newest look, for any number of watchers: one that is slow misses some, and keeps nobody waiting.
type broadcast struct {
	mutex   sync.Mutex
	newest  *look
	view    *View // that it is of
	at      time.Time
	changed chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{changed: make(chan struct{})} }

func (b *broadcast) set(at time.Time, v *View, l *look) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	close(b.changed)
	b.newest, b.view, b.at, b.changed = l, v, at, make(chan struct{})
}

// get returns the newest look, nil before the first, and what is closed when there is another.
func (b *broadcast) get() (*look, <-chan struct{}) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.newest, b.changed
}

// seen returns the newest view, nil before the first, and of when it is. Nobody changes it.
func (b *broadcast) seen() (*View, time.Time) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.view, b.at
}

// follow looks until ctx ends, also while nobody watches: who comes sees what has been.
func follow(ctx context.Context, source Source, to *broadcast) {
	e := newEncoder()
	for ctx.Err() == nil {
		began := time.Now()
		view := source.View(ctx)
		to.set(began, &view, e.take(began, &view))
		select {
		case <-time.After(max(lookPeriod, lookCost*time.Since(began)) - time.Since(began)):
		case <-ctx.Done():
		}
	}
}

// events is a stream of looks: the first as a whole, then what has changed. It ends when the guard lets its client in no more.
func (c *Console) events(w http.ResponseWriter, r *http.Request) {
	select {
	case c.limit <- struct{}{}:
		defer func() { <-c.limit }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many pages watch this console: close some", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	sent := uint64(0)
	for c.guard.allows(r) {
		now, changed := c.now.get()
		if now != nil && now.seq != sent {
			text := now.whole
			if sent != 0 && now.seq == sent+1 {
				text = now.delta
			}
			sent = now.seq
			control.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := w.Write(text()); err != nil {
				return
			}
			if control.Flush() != nil {
				return
			}
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
