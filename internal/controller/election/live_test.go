package election

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/store"
)

func TestControllersWhoseLeaseHasEndedAreListedAsLost(t *testing.T) {
	a, b := store.Member{Name: "c1"}, store.Member{Name: "c2", Address: "10.0.0.2:6443"}
	gone := withoutLease(nil, []store.Member{a, b}, []store.Member{a})
	if len(gone) != 1 || gone["c2"].Ready != hub.ReadyLost || gone["c2"].Address != b.Address {
		t.Errorf("gone are %v", gone)
	}
	if gone = withoutLease(gone, []store.Member{a}, []store.Member{a, b}); len(gone) != 0 {
		t.Errorf("back, but gone are %v", gone)
	}
}
