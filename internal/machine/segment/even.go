// Which of two load balancers has a VIP that both could.
package segment

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/rendezvous"
)

// even asks a peer that has more VIPs for one of them, one after the other. A single one stays where it is. Who asks is there to take it.
func (m *Machine) even(now time.Time) {
	if now.Sub(m.evened) < evenEvery {
		return
	}
	owned := len(m.owned())
	for _, name := range slices.Sorted(maps.Keys(m.peers)) {
		p := m.peers[name]
		if !p.fresh(now) || now.Sub(p.first) < evenAfter || owned+2 > p.owned {
			continue
		}
		var theirs []netip.Addr
		for address, v := range m.vips {
			if e, known := p.says(address, now); known && e.Owned && v.able && !v.owned {
				theirs = append(theirs, address)
			}
		}
		if len(theirs) == 0 {
			continue
		}
		slices.SortFunc(theirs, func(a, b netip.Addr) int { // those first that fall to this one
			return cmp.Or(-cmp.Compare(m.prefers(a, name), m.prefers(b, name)), a.Compare(b))
		})
		m.evened, m.advertise, m.asked, m.askedOf = now, true, theirs[0], name
		return
	}
}

func (m *Machine) prefers(address netip.Addr, peer string) int {
	if rendezvous.Elect(address.String(), []string{m.name, peer}, 1)[0] == peer {
		return 0
	}
	return 1
}
