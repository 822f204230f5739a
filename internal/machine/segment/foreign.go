// Hosts that answer for VIPs and are no load balancers of this fleet, as the one that had a VIP before.
//
// A VIP that the fleet has had is taken from them at once: whoever answers ARP on the segment, which anybody can, holds up no failover. One that the fleet has
// never had, or has given up, is left to them: starting load balancers moves nothing.
package segment

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	// vacant is how long nobody must have answered for a VIP that the fleet takes for the first time: ANNOUNCE_WAIT of RFC 5227 1.1.
	vacant      = askProbes * askForeign
	askProbes   = 4
	askForeign  = 500 * time.Millisecond // between two probes meanwhile
	lookForeign = time.Second            // between two probes of a VIP that such a host has answered for, or that is given up
	foreignLife = 3                      // probes that an answer counts for
)

// history is what is known of a VIP that decides between the fleet and others.
type history struct {
	ours       bool      // a load balancer of this fleet has had it
	remembered bool      // ours is what an earlier process knew
	asked      time.Time // since when it is asked for without a gap; zero: it is not
	foreign    MAC       // that answers, and is no load balancer
	foreignAt  time.Time
}

// Remember tells what an earlier process has returned by History.
func (m *Machine) Remember(now time.Time, ours []netip.Addr) {
	for _, address := range ours {
		if v := m.vips[address]; v == nil {
			m.vips[address] = &vip{next: now, history: history{ours: true, remembered: true}}
		}
	}
}

// History are the VIPs that the fleet has had, for the next process.
func (m *Machine) History() (ours []netip.Addr) {
	for address, v := range m.vips {
		if v.ours {
			ours = append(ours, address)
		}
	}
	slices.SortFunc(ours, netip.Addr.Compare)
	return ours
}

// SetAnnouncements says which VIPs are not model.VIPAuto. It is called before SetAble, which has a reason for those that are off.
func (m *Machine) SetAnnouncements(how map[netip.Addr]model.VIPAnnouncement) {
	if maps.Equal(m.how, how) {
		return
	}
	m.how, m.advertise = how, true
	for address, v := range m.vips {
		if how[address] == model.VIPOff {
			v.ours, v.remembered = false, false
		}
	}
}

// remember takes what a load balancer says of a VIP's history. That a VIP is given up counts against what an earlier process knew alone: nobody who is behind
// holds up a failover.
func (m *Machine) remember(e Entry, v *vip) {
	switch {
	case m.how[e.VIP] == model.VIPOff:
	case e.Owned:
		v.ours, v.remembered = true, false
	case e.Off && v.remembered:
		v.ours, v.remembered = false, false
	}
}

// asks reports whether others are asked for a VIP.
func (m *Machine) asks(address netip.Addr, v *vip) bool {
	return v.able || m.how[address] == model.VIPOff
}

// foreign is the host that has answered for a VIP within a time, and is no load balancer: it may have answered before it was known as one.
func (m *Machine) foreign(now time.Time, v *vip, within time.Duration) (by MAC, answers bool) {
	_, p := m.peerAt(v.foreign)
	return v.foreign, p == nil && !v.foreignAt.IsZero() && now.Sub(v.foreignAt) < within
}

// barred is why a VIP that no load balancer answers for is not taken; empty: it is.
func (m *Machine) barred(now time.Time, address netip.Addr, v *vip) string {
	if v.ours || m.how[address] == model.VIPForce {
		return ""
	}
	long := askProbes * m.asksEvery()
	if by, answers := m.foreign(now, v, long); answers {
		return fmt.Sprintf("%s answers for it, and is no load balancer of this fleet", by)
	}
	if now.Sub(v.asked) < long {
		return fmt.Sprintf("other hosts have %v to answer for it", long)
	}
	return ""
}

// asksEvery is between two probes of a VIP that only another host may have.
func (m *Machine) asksEvery() time.Duration { return max(askForeign, m.period()) }

// looksEvery is the same where nothing waits for the answer, and life how long one counts.
func (m *Machine) looksEvery() time.Duration { return max(lookForeign, m.period()) }
func (m *Machine) life() time.Duration       { return foreignLife * m.looksEvery() }

// missing is why a VIP is taken that was not left to this load balancer.
func (m *Machine) missing(now time.Time, address netip.Addr, v *vip) string {
	by, answers := m.foreign(now, v, m.life())
	switch {
	case answers && v.ours:
		return "no load balancer answers for it"
	case answers:
		return fmt.Sprintf("announce is force: it is taken from %s", by)
	}
	return "nobody answers for it"
}

// answeredByForeign takes note of an answer of a server that has the VIP on a device, of who has it outside of the fleet, or of somebody who lies.
func (m *Machine) answeredByForeign(now time.Time, address netip.Addr, v *vip, by MAC) []Action {
	v.foreign, v.foreignAt = by, now
	if !v.owned {
		return nil
	}
	if at := now.Add(m.looksEvery()); v.announced >= len(announceAt) && at.Before(v.next) {
		v.next = at
	}
	if now.Sub(v.defended) < defend {
		return nil
	}
	v.defended = now
	return []Action{{Kind: Announce, VIP: address}}
}
