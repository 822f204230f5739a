// A daemon that was away for long.
package segment

import (
	"net/netip"
	"slices"
	"time"
)

// Lease is how long a data path answers load balancers without its daemon: longer than an upgrade or a restart takes.
const Lease = 15 * time.Second

// Lapse is called when this process has not run for Lease, and others may have taken what it owned. answers tells which VIPs the data path still
// answers for.
func (m *Machine) Lapse(now time.Time, answers func(netip.Addr) bool) (actions []Action) {
	const why = "the daemon was away: the other load balancers are asked first"
	m.began, m.advertise = now, true
	for address, v := range m.vips {
		if !v.owned && !v.held {
			continue
		}
		v.owned, v.held, v.since, v.why, v.owner = false, answers(address), now, why, MAC{}
		v.missed, v.waits, v.take, v.next = 0, false, time.Time{}, now
		kind := Leave
		if v.held {
			kind = Hold
		}
		actions = append(actions, Action{Kind: kind, VIP: address, Why: why})
	}
	clear(m.handed)
	m.asked = netip.Addr{}
	for _, p := range m.peers {
		p.heard = time.Time{}
	}
	slices.SortFunc(actions, func(a, b Action) int { return a.VIP.Compare(b.VIP) })
	return actions
}
