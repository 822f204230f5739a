package enrolment

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhoAsksTooOftenWaits(t *testing.T) {
	each := limit{joinRate, joinBurst, atOnceEach}
	g := newGate(each)
	allowed := 0
	for range 3 * joinBurst {
		if g.enter("a") {
			allowed++
			g.leave("a")
		}
	}
	if allowed < joinBurst || allowed > joinBurst+2 || !g.enter("b") {
		t.Errorf("%d of %d are allowed", allowed, 3*joinBurst)
	}
	for i := range 2 * atOnce {
		g.enter(fmt.Sprint(i))
	}
	if g.total > atOnce {
		t.Errorf("%d at once", g.total)
	}
	g = newGate(each)
	for i := range 2 * atOnceEach {
		if g.enter("a") != (i < atOnceEach) {
			t.Errorf("one has %v connections at once", g.open)
		}
	}
	if g.leave("a"); !g.enter("b") || !g.enter("a") || g.enter("a") {
		t.Errorf("after one has left: %v", g.open)
	}
}

// Promise: Who has the addresses of one network, /24 of IPv4 or /48 of IPv6, holds a quarter of the places to join, and asks a fifth of what all may.
func TestOneNetworkLeavesRoomForTheOthersToJoin(t *testing.T) {
	for a, b := range map[string]string{"2001:db8::1": "2001:db8::2:3", "2001:db8:0:1::1": "2001:db8:0:2::1", "10.0.0.1": "10.0.0.2", "10.0.0.3": "10.0.1.3", "2001:db8:1::1": "2001:db8:2::1"} {
		of := func(address string) []string { return neighbourhood(netip.MustParseAddr(address)) }
		one, other := of(a), of(b)
		if host, network := one[0] == other[0], one[1] == other[1]; len(one) != 2 || host != (a == "2001:db8::1") || network == (a == "10.0.0.3" || a == "2001:db8:1::1") {
			t.Errorf("%s is %v, and %s is %v", a, one, b, other)
		}
	}
	if who := neighbourhood(netip.Addr{}); len(who) != 2 {
		t.Errorf("no address is %v", who)
	}
	for family, address := range map[string]func(i int) string{"IPv4": func(i int) string { return fmt.Sprintf("192.0.2.%d", i) }, "IPv6": func(i int) string { return fmt.Sprintf("2001:db8:0:%x::1", i) }} {
		synctest.Test(t, func(t *testing.T) {
			g := New(Options{}).gate
			held := 0
			for i := range 1000 { // addresses, for longer than each may take
				if g.enter(neighbourhood(netip.MustParseAddr(address(i % 250)))...) {
					held++
				}
				time.Sleep(time.Second / joinAll)
			}
			if held != atOnceWide || g.total != held {
				t.Errorf("%s: %d places are held by one network, of %d in use", family, held, g.total)
			}
			for i := range atOnce - atOnceWide {
				if !g.enter(neighbourhood(netip.AddrFrom4([4]byte{10, 0, byte(i), 1}))...) {
					t.Fatalf("%s: number %d of other networks is refused", family, i)
				}
				time.Sleep(time.Second / joinAll)
			}
			asked := 0
			g = New(Options{}).gate
			for i := range 250 { // at one time
				if who := neighbourhood(netip.MustParseAddr(address(i))); g.enter(who...) {
					asked++
					g.leave(who...)
				}
			}
			g.enter(neighbourhood(netip.MustParseAddr(address(1)))...) // the same again: it takes nothing from others
			if asked != joinWide || !g.enter(neighbourhood(netip.MustParseAddr("198.51.100.1"))...) || len(g.open) != 2 {
				t.Errorf("%s: %d of one network ask at one time, %v", family, asked, g.open)
			}
		})
	}
}
