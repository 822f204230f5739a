package paths

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/pathid"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/plan"
)

const pathSecret = 0x12345678

// narrowable is a table with one path, and an IPv4 error about it as a router sends it, or somebody who guesses.
func narrowable() (table *Table, about func(guess uint16, mtu uint16) netdev.TooBig) {
	source, server := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	table = &Table{Known: map[netip.Addr]plan.Path{server: {Ifindex: 1, Source: source, MTU: 1500}}}
	return table, func(guess, mtu uint16) netdev.TooBig {
		return netdev.TooBig{Source: source, Destination: server, MTU: mtu, Identification: guess}
	}
}

// Promise: An ICMP error that claims a smaller MTU needs a keyed proof of 16 bits (IPv4) or 20 (IPv6), 16 wrong
// ones in a minute silence that path for the rest of it, and IPv6 clients never get less than 1280
// (`ballast_path_errors_total`).
// Also held by TestWhoGuessesProofsIsHeardSixteenTimesAMinute and TestNoIPv6ClientIsToldLessThanItCanUse.
func TestOnlyErrorsThatProveThatTheyAreAboutOurPacketsAreBelieved(t *testing.T) {
	table, about := narrowable()
	proof, now := pathid.Identification(pathSecret), time.Now()
	for _, c := range []struct {
		found netdev.TooBig
		want  Outcome
	}{
		{about(proof+1, 1400), Forged},
		{about(0, 1400), Forged},
		{netdev.TooBig{Source: netip.MustParseAddr("10.0.0.9"), Destination: netip.MustParseAddr("10.0.0.2"), MTU: 1400, Identification: proof}, Foreign},
		{netdev.TooBig{Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.0.0.3"), MTU: 1400, Identification: proof}, Foreign},
		{about(proof, 1500), Foreign},
	} {
		if got := table.Narrow(c.found, pathSecret, now); got != c.want || len(table.small) != 0 {
			t.Errorf("%v: %s, want %s", c.found, got, c.want)
		}
	}
	if got := table.Narrow(about(proof, 1400), pathSecret, now); got != Believed || table.mtu(netip.MustParseAddr("10.0.0.2"), 1500) != 1400 {
		t.Errorf("an honest error: %s", got)
	}
}

func TestWhoGuessesProofsIsHeardSixteenTimesAMinute(t *testing.T) {
	table, about := narrowable()
	proof, now := pathid.Identification(pathSecret), time.Now()
	heard := 0
	for minute := range 10 {
		for guess := range 2000 {
			if table.Narrow(about(proof+1+uint16(minute*2000+guess), 1400), pathSecret, now) == Forged {
				heard++
			}
		}
		if got := table.Narrow(about(proof, 1400), pathSecret, now); got != Doubted {
			t.Fatalf("beside a flood: %s", got)
		}
		now = now.Add(doubtPeriod + time.Nanosecond)
	}
	if heard != 10*maxForged {
		t.Errorf("%d guesses were compared", heard)
	}
	if got := table.Narrow(about(proof, 1400), pathSecret, now); got != Believed {
		t.Errorf("after the flood: %s", got)
	}
}

// Promise: Clients learn a router's MTU that is smaller than the route's after the first such packet, and it is
// kept for ten minutes.
// Also held by TestTransfersCompleteAcrossSmallerMTU.
func TestANarrowPathIsForgotten(t *testing.T) {
	table, about := narrowable()
	server := netip.MustParseAddr("10.0.0.2")
	long := time.Now().Add(-narrowPathLife - time.Second)
	table.Narrow(about(pathid.Identification(pathSecret), 1400), pathSecret, long)
	if !table.Expired(time.Now()) || table.mtu(server, 1500) != 1500 {
		t.Error("a router's word of long ago holds")
	}
	table.Refresh(nil, &netdev.Routes{}, slog.New(slog.DiscardHandler))
	if len(table.small) != 0 || table.Expired(time.Now()) {
		t.Error("it is kept for ever")
	}
}
