package documents

import (
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/store"
)

func TestADamagedDocumentOfKeysIsNotTaken(t *testing.T) {
	good := `{"current": 2, "keys": [{"epoch": 1, "key": "` + strings.Repeat("0f", 32) + `"}, {"epoch": 2, "key": "` + strings.Repeat("1f", 32) + `"}]}`
	now := New()
	fleettest.Require(t, now.Take(store.Document{Key: TicketsKey, Value: []byte(good), Revision: 1}, 1))
	for _, change := range [][2]string{{`"current": 2`, `"current": 3`}, {`"epoch": 1`, `"epoch": 2`}, {"0f0f", "0f"}, {"1f1f", "1g1f"}, {"{", "["}} {
		err := New().Take(store.Document{Key: TicketsKey, Value: []byte(strings.Replace(good, change[0], change[1], 1)), Revision: 1}, 1)
		if err == nil || strings.Contains(err.Error(), "0f0f") {
			t.Errorf("%v: %v", change, err)
		}
	}
	fleettest.Require(t, now.Take(store.Document{Key: TicketsKey}, 2))
	if now.Tickets.Current != 0 || len(now.Tickets.Keys) != 0 {
		t.Errorf("a document that is gone leaves %v", now.Tickets)
	}
}
