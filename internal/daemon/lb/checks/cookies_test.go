package checks

import (
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/check"
)

func TestALoadBalancerDoubtsItselfOnlyIfItReadsNobody(t *testing.T) {
	own := check.Result{Healthy: true, Remarks: check.Remarks{Cookie: check.CookieOwn}}
	sick := check.Result{Remarks: check.Remarks{Cookie: check.CookieOwn}} // answers, and fails the check by what it says
	foreign := check.Result{Remarks: check.Remarks{Cookie: check.CookieForeign}}
	firstFailure := check.Result{Healthy: true, Remarks: check.Remarks{Cookie: check.CookieForeign}}
	dead := check.Result{}
	for _, test := range []struct {
		name    string
		results []check.Result
		want    int
	}{
		{"nothing is known", nil, 0},
		{"all are foreign", []check.Result{foreign, foreign, foreign}, 3},
		{"and one is dead", []check.Result{foreign, dead, foreign}, 2},
		{"one of many is foreign", []check.Result{own, foreign, own}, 0},
		{"only one is not", []check.Result{foreign, foreign, own}, 0},
		{"who is not is unhealthy for another reason", []check.Result{foreign, foreign, sick}, 0},
		{"there is one", []check.Result{foreign}, 0},
		{"one is left of two", []check.Result{foreign, dead}, 0},
		{"there is no verdict yet", []check.Result{firstFailure, firstFailure}, 0},
	} {
		for i := range test.results {
			test.results[i].ID = uint16(i + 1)
		}
		// 100 and above: of services whose servers write no cookies.
		results := append(test.results, check.Result{ID: 100, Healthy: true}, check.Result{ID: 101}, check.Result{ID: 102})
		have := readsNobody(results, func(_ string, id uint16) (address netip.Addr) {
			if id < 100 {
				address = netip.AddrFrom4([4]byte{10, 0, 0, byte(id)})
			}
			return address
		})
		if have != test.want {
			t.Errorf("%s: %d, want %d", test.name, have, test.want)
		}
	}
	again := []check.Result{foreign, foreign}
	if have := readsNobody(again, func(string, uint16) netip.Addr { return netip.MustParseAddr("10.0.0.1") }); have != 0 {
		t.Errorf("one host with two services: %d", have)
	}
}
