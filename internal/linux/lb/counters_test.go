package lb

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Promise: What a load balancer that has ended forwards is counted by what it has left, on every path of a packet.
func TestWhatIsPinnedTellsWhatIsForwarded(t *testing.T) {
	w := newWorld(t, policy(model.DispatchRR, 1))
	dir := progtest.Pins(t)
	if _, known, err := Forwarded(dir); known || err != nil {
		t.Errorf("nothing is pinned: %v, %v", known, err)
	}
	folder := filepath.Join(dir, Layout)
	progtest.Check(t, os.MkdirAll(folder, 0o700))
	progtest.Check(t, w.lb.objects.ServerCounters.Pin(filepath.Join(folder, lbMapServerCounters)))
	count := func() uint64 {
		t.Helper()
		packets, known, err := Forwarded(dir)
		if progtest.Check(t, err); !known {
			t.Error("it is not known")
		}
		return packets
	}
	before := count()
	w.connect(5)
	f := flowTo(vip4, 80, 0)
	for range 300 { // by cookie: the fast path
		w.check(f.frame(f.tcp(ack, timestamps(1, w.cookieFor("web", f, 1, 1)), nil)))
	}
	if more := count() - before; more != 305 {
		t.Errorf("%d packets are counted, not 305", more)
	}
	other, err := Open(filepath.Join(dir, "other"), plan.Limits{Services: 1, Servers: 1, ServerIDs: 256, Slots: 512, Rounds: 2})
	progtest.Check(t, err)
	progtest.Check(t, other.Close())
	if packets, known, err := Forwarded(filepath.Join(dir, "other")); packets != 0 || !known || err != nil {
		t.Errorf("of another that has ended: %d, %v, %v", packets, known, err)
	}
}
