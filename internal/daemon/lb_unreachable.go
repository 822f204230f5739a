// Servers without a known way: which of them are missed.
package daemon

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// leaverSilence is how long no packet comes for a server that gets no new connections until it counts as one without connections.
// Estimates of open connections do not tell: of a server that died, nobody sees the ends.
const leaverSilence = time.Minute

// heard is what came for an address without a known way.
type heard struct {
	packets uint64
	last    time.Time // zero: nothing since it has no way
}

// listen notes for which addresses without a known way packets come. Callers hold mu.
func (lb *LB) listen(now time.Time, packets func(service string, id uint16) uint64) {
	maps.DeleteFunc(lb.heard, func(address netip.Addr, _ heard) bool { return lb.paths.Why[address] == "" })
	if len(lb.paths.Why) == 0 {
		return
	}
	count := map[netip.Addr]uint64{}
	for i := range lb.node.Running.Services {
		s := &lb.node.Running.Services[i]
		for _, server := range slices.Concat(s.Servers, lb.node.Lingering(s.Name)) {
			if lb.paths.Why[server.Address] != "" {
				count[server.Address] += packets(s.Name, server.ID)
			}
		}
	}
	for address, packets := range count {
		before, known := lb.heard[address]
		if known && packets != before.packets {
			before.last = now
		}
		lb.heard[address] = heard{packets, before.last}
	}
}

// unreachable are the addresses without a known way that are missed: of who takes new connections, or whom packets come for. Callers
// hold mu.
func (lb *LB) unreachable(now time.Time) (problems []string) {
	wanted := map[netip.Addr]bool{}
	add := func(s *model.Service) {
		for i := range s.Servers {
			wanted[s.Servers[i].Address] = wanted[s.Servers[i].Address] || s.Servers[i].TakesNew()
		}
	}
	for i := range lb.node.Running.Services {
		add(&lb.node.Running.Services[i])
	}
	if second := lb.secondTier(); second != nil {
		add(second)
	}
	for address, why := range lb.paths.Why {
		if wanted[address] || now.Sub(lb.heard[address].last) < leaverSilence {
			problems = append(problems, fmt.Sprintf("%s: %s", lb.subject(address), why))
		}
	}
	return problems
}

// wantedAddresses are those of all servers and nodes that may get packets from here.
func (lb *LB) wantedAddresses() (addresses []netip.Addr) {
	seen := map[netip.Addr]bool{}
	add := func(servers []model.Server) {
		for _, s := range servers {
			if !seen[s.Address] {
				seen[s.Address] = true
				addresses = append(addresses, s.Address)
			}
		}
	}
	for _, s := range lb.node.Running.Services {
		if !lb.sendsToNodes(&s) {
			add(s.Servers)
			add(lb.node.Lingering(s.Name))
		}
	}
	if second := lb.secondTier(); second != nil {
		add(second.Servers)
	}
	return addresses
}
