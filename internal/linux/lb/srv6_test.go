package lb

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// segmented is a service whose stops are segments.
func segmented(s *model.Service) {
	withServers(true, 1, 2, 3)(s)
	s.Forward = model.ForwardSRv6
}

// Earlier owners of a slot are segments, byte by byte, with any tags; and what does not fit with them is told the MTU that would.
func TestEarlierOwnersAreSegments(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, segmented))
		for _, drained := range []int{1, 2} {
			w.update(func(want *plan.Want) { service(want, "web").Servers[drained].State = model.StateDraining })
		}
		seen := map[int]int{}
		for n := range 200 {
			w.update(func(want *plan.Want) { setVLAN(want, []uint16{0, 0x2009}[n%2]) })
			setMTU(w, 1500)
			f := flowTo(vip, 80, n)
			for _, vlan := range []uint16{0, 7} {
				got, want := w.checkVerdict(ethernet(vlan, ipPacket(f.client.Addr(), vip, 6, f.tcp(ack, nil, []byte("x")))), lbVerdictFORWARDED_NO_TIMESTAMP)
				seen[len(want.stops)]++
				at := 14 + n%2*4
				if routed := got.frame[at+6] == 43; routed != (len(want.stops) > 0) {
					t.Fatalf("%d stops: %x", len(want.stops), got.frame)
				}
				if len(want.stops) == 0 {
					continue
				}
				setMTU(w, 1400)
				s := service(&w.want, "web")
				fits := 1400 - outerLength(s, &s.Servers[0], want.stops)
				header := len(ipPacket(f.client.Addr(), vip, 6, f.tcp(ack, nil, nil)))
				tooBig := ipPacket(f.client.Addr(), vip, 6, f.tcp(ack, nil, make([]byte, fits-header+1)))
				if vip.Is4() || len(tooBig) > 1280 {
					got, _ := w.checkVerdict(ethernet(vlan, tooBig), lbVerdictANSWERED_TOO_BIG)
					w.checkMTU(got.frame, max(fits, map[bool]int{true: 1280}[vip.Is6()]))
				}
				w.checkVerdict(ethernet(vlan, ipPacket(f.client.Addr(), vip, 6, f.tcp(ack, nil, make([]byte, fits-header)))), lbVerdictFORWARDED_NO_TIMESTAMP)
				setMTU(w, 1500)
			}
		}
		for stops := range 3 {
			if seen[stops] == 0 {
				t.Errorf("%v: the test misses a case", seen)
			}
		}
	}
}

// A place that cannot be used repeats the address before it, so that every candidate keeps its place; the packet begins at the first that can be reached.
func TestEverySegmentHasItsPlace(t *testing.T) {
	chosen := choosing(vip4, true, model.AffinityCookie, 4, 1)
	chosen.Forward = model.ForwardSRv6
	w := newWorld(t, chosen)
	w.update(func(want *plan.Want) {
		for _, id := range []uint16{3, 6} {
			path := want.Paths[serverOf(id, true).Address]
			path.Ifindex = 0
			want.Paths[serverOf(id, true).Address] = path
		}
	})
	positions := map[string]int{}
	for n := range 200 {
		f := flowTo(vip4, 443, n)
		got, _ := w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW)
		left, last := got.frame[14+40+3], got.frame[14+40+4]
		positions[fmt.Sprintf("%d of %d", last-left, last)]++
		if active := got.frame[14+48+16*int(left):][:16]; string(active) != string(got.frame[14+24:14+40]) {
			t.Fatalf("the active segment %x is not the destination %x", active, got.frame[14+24:14+40])
		}
	}
	for _, position := range []string{"0 of 3", "1 of 3", "2 of 3"} {
		if positions[position] == 0 {
			t.Errorf("where packets began: %v", positions)
		}
	}
}
