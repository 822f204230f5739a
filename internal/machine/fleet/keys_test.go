package fleet

import (
	"errors"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// Promise: A file that gives a key in use, or an id that connections carry, another meaning is refused without
// `--force`, also at a start.
// Also held by TestALoadBalancerTakesAFileThatBreaksConnectionsByForceAlone,
// TestAnAgentThatRestartsKeepsTheKeyAndTheIDOfLivingConnections and
// TestAnAgentThatStartsWithTheFileOfAnotherFleetTouchesNothing.
func TestAFileDoesNotLoseTheKeyInUse(t *testing.T) {
	epochs := func(current uint32, epochs ...uint32) model.Fleet {
		f := fleet(1)
		f.Keys.Current, f.Keys.Cookie = current, map[uint32][16]byte{}
		for _, epoch := range epochs {
			f.Keys.Cookie[epoch] = [16]byte{byte(epoch) + 1}
		}
		return f
	}
	n, breaks := started(t, 1), (*Breaks)(nil)
	if _, err := n.EditFile(epochs(2, 2), start); !errors.As(err, &breaks) || !strings.Contains(err.Error(), "epoch 1") {
		t.Errorf("another key at once: %v", err)
	}
	edit(t, n, epochs(1, 1, 2), start)
	if _, err := n.EditFile(epochs(2, 2), start); !errors.As(err, &breaks) {
		t.Errorf("it is dropped as soon as it is not in use: %v", err)
	}
	edit(t, n, epochs(2, 1, 2), start)
	edit(t, n, epochs(2, 2), start)

	rotate := func(next *Desired) error { next.Running.Keys = epochs(3, 2, 3).Keys; return nil }
	if _, err := n.Change(start, rotate); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Reset(false, start); !errors.As(err, &breaks) || !strings.Contains(err.Error(), "epoch 3") {
		t.Errorf("the way back to the file loses the key in use: %v", err)
	}
	if changes, err := n.Reset(true, start); err != nil || len(changes) == 0 {
		t.Errorf("by force: %q, %v", changes, err)
	}
}
