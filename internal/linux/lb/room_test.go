package lb

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/plan"
)

// A process that is told no limits takes over maps of any size, and one that is told others does not.
func TestMapsKeepTheRoomThatTheyWereMadeWith(t *testing.T) {
	dir := progtest.Pins(t)
	none, err := PinnedLimits(dir)
	progtest.Check(t, err)
	if none != (plan.Limits{}) {
		t.Errorf("of no maps: %+v", none)
	}
	said := plan.Limits{Services: 2, Servers: 5, ServerIDs: 512, Slots: 640, Rounds: 2, Entries: 128, Local: 9, Replicated: 1 << 14}
	first, err := Open(dir, said)
	progtest.Check(t, err)
	first.Close()
	pinned, err := PinnedLimits(dir)
	progtest.Check(t, err)
	if pinned.Servers != said.Servers || pinned.Slots != said.Slots || pinned.Entries != said.Entries || pinned.Local != said.Local {
		t.Errorf("%+v", pinned)
	}
	second, err := Open(dir, pinned.Or(said))
	progtest.Check(t, err)
	second.Close()
	larger := plan.Limits{Entries: 256}.Or(said)
	if third, err := Open(dir, larger); err == nil {
		third.Close()
		t.Error("maps of another size were taken over")
	}
}
