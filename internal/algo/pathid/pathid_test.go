package pathid

import (
	"net/netip"
	"testing"
)

func TestFlowsToOneServerAreSpreadAndServersDiffer(t *testing.T) {
	a, b := Secret([16]byte{1}, netip.MustParseAddr("fd00::1")), Secret([16]byte{1}, netip.MustParseAddr("fd00::2"))
	if a == b || a == Secret([16]byte{2}, netip.MustParseAddr("fd00::1")) {
		t.Error("two secrets are one")
	}
	paths, labels := [16]int{}, map[uint32]bool{}
	const flows = 16000
	for n := range uint16(flows) {
		label := Label(a, Entropy(netip.AddrPortFrom(netip.MustParseAddr("203.0.113.7"), 1024+n), 443))
		if label>>20 != 0 {
			t.Fatalf("label %#x", label)
		}
		labels[label] = true
		paths[label%16]++
	}
	for path, got := range paths {
		if got < flows/16*8/10 || got > flows/16*12/10 {
			t.Errorf("path %d has %d of %d flows", path, got, flows)
		}
	}
	if len(labels) < flows*8/10 {
		t.Errorf("%d labels for %d flows", len(labels), flows)
	}
}
