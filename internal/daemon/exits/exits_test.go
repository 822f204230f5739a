package exits

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

func TestAVethDeviceIsJudgedByItsPeerAndByItsFeatures(t *testing.T) {
	seen := func(program uint32) netdev.Target {
		return netdev.Target{Veth: true, Peer: netdev.Peer{Name: "far", Known: true, Program: program}}
	}
	features := func(target netdev.Target, has netdev.XDPFeatures) netdev.Target {
		target.Features, target.FeaturesKnown = has, true
		return target
	}
	hidden := netdev.Target{Veth: true}
	redirects, returns := use{redirects: true}, use{returns: true}
	for name, test := range map[string]struct {
		target      netdev.Target
		by          use
		busy, drops bool
	}{
		"a program at the peer":                            {seen(7), returns, false, false},
		"none, of an old kernel":                           {seen(0), returns, false, true},
		"none, redirected, of an old kernel":               {seen(0), redirects, false, true},
		"GRO alone":                                        {features(seen(0), netdev.XDPTransmit), returns, false, true},
		"GRO alone, and the host sends packets of its own": {features(seen(0), netdev.XDPTransmit), returns, true, false},
		"GRO alone, redirected":                            {features(seen(0), netdev.XDPTransmit), redirects, false, false},
		"a hidden peer that takes none":                    {features(hidden, netdev.XDPBasic), returns, false, true},
		"a hidden peer that takes them":                    {features(hidden, netdev.XDPTransmit), returns, false, false},
		"a hidden peer, of an old kernel: checks tell":     {hidden, returns, false, false},
	} {
		d := &Devices{Log: slog.New(slog.DiscardHandler), Busy: test.busy}
		got := d.look(&net.Interface{Index: 7, Name: "eth0"}, test.target, test.by, attach.XDPNative, time.Time{})
		if !got.byXDP || (got.why != "") != test.drops || test.drops && !strings.Contains(got.why, "ballast pass --interface ") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A driver may transmit what its own program returns, and refuse what others redirect to it: checks are redirected.
func TestChecksAreRedirectedToACardThatPacketsOnlyComeInByIfItTakesThem(t *testing.T) {
	d := &Devices{Log: slog.New(slog.DiscardHandler)}
	for _, takes := range []bool{true, false} {
		target := netdev.Target{Features: netdev.XDPBasic, FeaturesKnown: true}
		if takes {
			target.Features |= netdev.XDPTransmit
		}
		if got := d.look(&net.Interface{Index: 7, Name: "eth0"}, target, use{returns: true}, attach.XDPNative, time.Time{}); got.byXDP != takes || got.why != "" {
			t.Errorf("takes %v: %+v", takes, got)
		}
	}
}
