package serving

import (
	"net/netip"
	"testing"
	"time"
)

func TestStopsGoLongAfterTheFileDroppedThem(t *testing.T) {
	named, gone := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	start := time.Now()
	stops := map[netip.Addr]time.Time{}
	keepStops(stops, []netip.Addr{named, gone}, start)
	keepStops(stops, []netip.Addr{named}, start.Add(stopLife))
	if len(stops) != 2 {
		t.Errorf("after %s: %v", stopLife, stops)
	}
	keepStops(stops, []netip.Addr{named}, start.Add(stopLife+time.Second))
	if _, there := stops[named]; !there || len(stops) != 1 {
		t.Errorf("later: %v", stops)
	}
}
