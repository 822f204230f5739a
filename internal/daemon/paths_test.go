package daemon

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
func narrowable() (table *pathTable, about func(guess uint16, mtu uint16) netdev.TooBig) {
	source, server := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	table = &pathTable{known: map[netip.Addr]plan.Path{server: {Ifindex: 1, Source: source, MTU: 1500}}}
	return table, func(guess, mtu uint16) netdev.TooBig {
		return netdev.TooBig{Source: source, Destination: server, MTU: mtu, Identification: guess}
	}
}

func TestOnlyErrorsThatProveThatTheyAreAboutOurPacketsAreBelieved(t *testing.T) {
	table, about := narrowable()
	proof, now := pathid.Identification(pathSecret), time.Now()
	for _, c := range []struct {
		found netdev.TooBig
		want  pathError
	}{
		{about(proof+1, 1400), pathErrorForged},
		{about(0, 1400), pathErrorForged},
		{netdev.TooBig{Source: netip.MustParseAddr("10.0.0.9"), Destination: netip.MustParseAddr("10.0.0.2"), MTU: 1400, Identification: proof}, pathErrorForeign},
		{netdev.TooBig{Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.0.0.3"), MTU: 1400, Identification: proof}, pathErrorForeign},
		{about(proof, 1500), pathErrorForeign},
	} {
		if got := table.narrow(c.found, pathSecret, now); got != c.want || len(table.small) != 0 {
			t.Errorf("%v: %s, want %s", c.found, pathErrorNames[got], pathErrorNames[c.want])
		}
	}
	if got := table.narrow(about(proof, 1400), pathSecret, now); got != pathErrorBelieved || table.mtu(netip.MustParseAddr("10.0.0.2"), 1500) != 1400 {
		t.Errorf("an honest error: %s", pathErrorNames[got])
	}
}

func TestWhoGuessesProofsIsHeardSixteenTimesAMinute(t *testing.T) {
	table, about := narrowable()
	proof, now := pathid.Identification(pathSecret), time.Now()
	heard := 0
	for minute := range 10 {
		for guess := range 2000 {
			if table.narrow(about(proof+1+uint16(minute*2000+guess), 1400), pathSecret, now) == pathErrorForged {
				heard++
			}
		}
		if got := table.narrow(about(proof, 1400), pathSecret, now); got != pathErrorDoubted {
			t.Fatalf("beside a flood: %s", pathErrorNames[got])
		}
		now = now.Add(doubtPeriod + time.Nanosecond)
	}
	if heard != 10*maxForged {
		t.Errorf("%d guesses were compared", heard)
	}
	if got := table.narrow(about(proof, 1400), pathSecret, now); got != pathErrorBelieved {
		t.Errorf("after the flood: %s", pathErrorNames[got])
	}
}

func TestANarrowPathIsForgotten(t *testing.T) {
	table, about := narrowable()
	server := netip.MustParseAddr("10.0.0.2")
	long := time.Now().Add(-narrowPathLife - time.Second)
	table.narrow(about(pathid.Identification(pathSecret), 1400), pathSecret, long)
	if !table.expired(time.Now()) || table.mtu(server, 1500) != 1500 {
		t.Error("a router's word of long ago holds")
	}
	table.refresh(nil, slog.New(slog.DiscardHandler))
	if len(table.small) != 0 || table.expired(time.Now()) {
		t.Error("it is kept for ever")
	}
}
