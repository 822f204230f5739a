package lb

import (
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// rewrittenWorld has services whose packets may take the fast path of lb_rewritten: return: through, some to next hops with a tag. "other" and
// "tagged-other" are for goesFast.
func rewrittenWorld(t *testing.T) *world {
	through := func(forward model.Forward, port uint16, change func(*model.Service)) func(*model.Service) {
		return fastCookies(8, func(s *model.Service) {
			s.Return, s.Forward, s.Fallback = model.ReturnThrough, forward, model.FallbackHash
			if change != nil {
				change(s)
			}
			if port != 0 { // of the servers' own, for the one of the service
				s.Ports = []uint16{443}
				setPorts(s, port)
			}
		})
	}
	byHash := func(protocol model.Protocol) func(*model.Service) {
		return func(s *model.Service) { s.Protocol, s.Affinity = protocol, model.AffinityHash }
	}
	byTurns := func(servers ...uint16) func(*model.Service) {
		return func(s *model.Service) {
			withServers(false, servers...)(s)
			s.Dispatch = model.DispatchRR
		}
	}
	w := newWorld(t, serviceOf("through-l2", fastVIP(34), through(model.ForwardL2, 0, nil)), serviceOf("through-l2-six", plus(vip6, 9), through(model.ForwardL2, 0, nil)),
		serviceOf("nat", fastVIP(35), through(model.ForwardNAT, 0, nil)), serviceOf("nat-six", plus(vip6, 10), through(model.ForwardNAT, 0, nil)),
		serviceOf("nat-port", fastVIP(36), through(model.ForwardNAT, 8080, nil)), serviceOf("nat-port-six", plus(vip6, 11), through(model.ForwardNAT, 8080, nil)),
		serviceOf("nat-rr", fastVIP(37), through(model.ForwardNAT, 8081, byTurns(1, 127, 3))),
		serviceOf("nat-hash", fastVIP(38), through(model.ForwardNAT, 8082, byHash(model.ProtocolTCP))),
		serviceOf("nat-udp", fastVIP(39), through(model.ForwardNAT, 8080, byHash(model.ProtocolUDP))),
		serviceOf("nat-udp-six", plus(vip6, 12), through(model.ForwardNAT, 0, byHash(model.ProtocolUDP))),
		serviceOf("nat-local", fastVIP(40), through(model.ForwardNAT, 8083, func(s *model.Service) { s.Affinity = model.AffinityLocal })),
		serviceOf("tagged-nat", fastVIP(44), through(model.ForwardNAT, 8080, byTurns(41, 42))),
		serviceOf("tagged-other", fastVIP(98), fastCookies(16, withServers(false, 1, 2, 3, 41, 42))), serviceOf("other", fastVIP(99), fastCookies(16, withServers(false, 1, 2, 3, 127))))
	w.update(func(want *plan.Want) {
		want.Keys = testKeys(1, 2)
		changePath(want, "tagged-nat", 41, func(p *plan.Path) { p.VLAN = 0x2009 })
		changePath(want, "tagged-nat", 42, func(p *plan.Path) { p.VLAN, p.MTU = 7, 110 })
		changePath(want, "nat", 2, func(p *plan.Path) { p.MTU = 110 })
		s := service(want, "nat-rr")
		s.NoCookie = map[uint16]bool{3: true}
	})
	for name, place := range w.tables.Places() {
		for id, index := range place.Counters {
			if id != 3 || name == "other" || name == "tagged-other" { // there the clock is not known
				mustSet(w.lb.SetClock(index, uint32(id)<<24))
			}
		}
	}
	return w
}

func TestTheFastPathRewritesAsTheSlowPathDoes(t *testing.T) {
	through := []string{"through-l2", "through-l2-six", "nat", "nat-six", "nat-port", "nat-port-six", "nat-rr", "tagged-nat"}
	comparePaths(t, rewrittenWorld(t), fastKinds{
		fast: slices.Concat(through, []string{"nat-hash", "nat-udp", "nat-udp-six", "nat-local"}), syns: slices.Concat(through, []string{"nat-local"}),
		cookies: through,
	})
}
