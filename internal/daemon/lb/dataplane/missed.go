// Servers without a known path: which of them are missed.
package dataplane

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// leaverSilence is how long no packet comes for a server that gets no new connections until it counts as one without connections.
// Estimates of open connections do not tell: of a server that died, nobody sees the ends.
const leaverSilence = time.Minute

// missed notes what comes for addresses without a known path.
type missed struct {
	mutex sync.Mutex
	heard map[netip.Addr]heard
}

type heard struct {
	packets uint64
	last    time.Time // zero: nothing since it has no path
}

// listen counts the packets that come for addresses without a known path.
func (m *missed) listen(now *Snapshot, at time.Time, packets func(service string, id uint16) uint64) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	maps.DeleteFunc(m.heard, func(address netip.Addr, _ heard) bool { return now.Pathless[address] == "" })
	if len(now.Pathless) == 0 {
		return
	}
	count := map[netip.Addr]uint64{}
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		for _, server := range slices.Concat(s.Servers, now.Lingering(s.Name)) {
			if now.Pathless[server.Address] != "" {
				count[server.Address] += packets(s.Name, server.ID)
			}
		}
	}
	if m.heard == nil {
		m.heard = map[netip.Addr]heard{}
	}
	for address, packets := range count {
		before, known := m.heard[address]
		if known && packets != before.packets {
			before.last = at
		}
		m.heard[address] = heard{packets, before.last}
	}
}

// unreachable are the addresses without a known path that are missed: of who takes new connections, or whom packets come for.
func (m *missed) unreachable(now *Snapshot, at time.Time) (problems []string) {
	wanted := map[netip.Addr]bool{}
	add := func(s *model.Service) {
		for i := range s.Servers {
			wanted[s.Servers[i].Address] = wanted[s.Servers[i].Address] || s.Servers[i].TakesNew()
		}
	}
	for i := range now.Running.Services {
		add(&now.Running.Services[i])
	}
	if second := now.SecondTier(); second != nil {
		add(second)
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for address, why := range now.Pathless {
		if wanted[address] || at.Sub(m.heard[address].last) < leaverSilence {
			problems = append(problems, fmt.Sprintf("%s: %s", now.Receiver(address), why))
		}
	}
	return problems
}
