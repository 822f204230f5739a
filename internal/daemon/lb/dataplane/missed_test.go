package dataplane

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

// A server that has left and has no way any more is a problem while packets come for it, and no longer.
func TestAServerThatHasLeftIsMissedWhilePacketsComeForIt(t *testing.T) {
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, last}) }
	server := func(id uint16, state model.ServerState) model.Server {
		return model.Server{Name: "s", ID: id, Address: at(byte(id)), Weight: 1, State: state}
	}
	state := &desired.State{}
	state.Running.Services = []model.Service{{Name: "web", Servers: []model.Server{server(1, model.StateActive), server(2, model.StateDraining), server(3, model.StateOff)}}}
	state.Removed = []fleet.Removed{{Service: "web", Server: server(4, model.StateActive)}}
	seen := &Snapshot{State: state, Pathless: map[netip.Addr]string{at(1): "gone", at(2): "gone", at(3): "gone", at(4): "gone"}}
	var m missed
	came := map[uint16]uint64{2: 5, 4: 7}
	now := time.Unix(1000, 0)
	expect := func(when string, want ...string) {
		t.Helper()
		m.listen(seen, now, func(_ string, id uint16) uint64 { return came[id] })
		have := m.unreachable(seen, now)
		if slices.Sort(have); !slices.Equal(have, want) {
			t.Errorf("%s: %q, want %q", when, have, want)
		}
	}
	expect("at first", "server 10.0.0.1: gone")
	came[4]++
	expect("a packet for the removed one", "server 10.0.0.1: gone", "server 10.0.0.4: gone")
	now = now.Add(leaverSilence / 2)
	came[2]++
	expect("a packet for the draining one", "server 10.0.0.1: gone", "server 10.0.0.2: gone", "server 10.0.0.4: gone")
	now = now.Add(leaverSilence / 2)
	expect("the removed one is silent", "server 10.0.0.1: gone", "server 10.0.0.2: gone")
	now = now.Add(leaverSilence)
	expect("all that have left are silent", "server 10.0.0.1: gone")
	delete(seen.Pathless, at(1))
	expect("the active one is there again")
	if seen.Pathless = nil; len(m.heard) != 3 {
		t.Errorf("%v", m.heard)
	}
	if expect("all have a way"); len(m.heard) != 0 {
		t.Errorf("what needs no answer is remembered: %v", m.heard)
	}
}
