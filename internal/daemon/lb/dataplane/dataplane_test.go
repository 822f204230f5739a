package dataplane

import (
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
)

// A change asks the kernel for paths, and may wait long for it.
func TestWhoOnlyReadsWaitsForNoChange(t *testing.T) {
	tables := &Tables{}
	tables.now.Store(&Snapshot{State: &desired.State{}})
	tables.mutex.Lock()
	read := make(chan struct{})
	go func() {
		tables.Unreachable(time.Now())
		tables.Outcomes()
		tables.Hold(func(now *Snapshot) { now.Unconfirmed() })
		close(read)
	}()
	select {
	case <-read:
	case <-time.After(10 * time.Second):
		t.Error("it waits")
	}
}
