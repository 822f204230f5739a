package tickets

import (
	"fmt"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
)

// tracker knows which servers have the next key.
type tracker struct {
	settle time.Duration

	mutex  sync.Mutex
	next   string   // fingerprint of the key
	behind []string // why tickets must not be made by it yet
	since  time.Time
}

// observe finds out who has a key.
func (t *tracker) observe(nodes *rotation.Nodes, fleet *model.Fleet, key *rotation.TicketKey) (behind, own []string) {
	behind, own = nodes.TicketsBehind(fleet, key)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if next := string(key.Fingerprint()); next != t.next || len(behind) > 0 || len(t.behind) > 0 {
		t.next, t.since = next, time.Now()
	}
	t.behind = behind
	return behind, own
}

// waits says why tickets must not be made by a key yet, as was seen last.
func (t *tracker) waits(key *rotation.TicketKey) []string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	switch {
	case key == nil || t.next != string(key.Fingerprint()):
		return []string{"which servers have the next key is not known yet"}
	case len(t.behind) > 0:
		return t.behind
	case time.Since(t.since) < t.settle:
		return []string{fmt.Sprintf("servers have had the next key for less than %v: applications may have to read it yet", t.settle)}
	}
	return nil
}
