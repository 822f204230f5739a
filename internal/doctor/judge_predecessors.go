package doctor

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func judgePredecessors(f *facts) (out []Finding) {
	if f.Role != RoleLB {
		return nil
	}
	good := 0
	f.services(func(s *model.Service) {
		for _, address := range s.Predecessor.Addresses {
			found := judgePredecessor(s, address, f.Paths[address])
			if out = append(out, found...); len(found) == 0 {
				good++
			}
		}
	})
	if good > 0 {
		out = append(out, ok("predecessor", "", "%s next hops", model.Counted(good, "predecessor has", "predecessors have")))
	}
	return out
}

// judgePredecessor cannot tell whether a predecessor takes the VIP: what its host sends is for clients.
func judgePredecessor(s *model.Service, address netip.Addr, path pathFacts) []Finding {
	const check, remedy = "predecessor", "bring it back, or remove predecessor once ballast_predecessor_connections is 0"
	subject := s.Name + "/" + address.String()
	switch {
	case path.Err != nil && s.Predecessor.Share.Permille() == model.ShareAll: // the daemon reports it if packets come for it
		return []Finding{{check, subject, Warning, "no way to it: " + path.Err.Error(), remedy}}
	case errors.Is(path.Err, netdev.ErrUnresolved):
		return []Finding{silentHop(check, subject, "the next hop of new connections", path.Err, remedy)}
	case path.Err != nil:
		return []Finding{{check, subject, Problem, "new connections go there: " + path.Err.Error(), fmt.Sprintf("ip route add %s via ROUTER, or correct the address", address)}}
	case path.Here:
		return []Finding{{check, subject, Problem, "it is this host", "name the host that had the VIP before"}}
	case s.Predecessor.Forward == model.ForwardL2 && !path.OnLink:
		return []Finding{{check, subject, Problem, "it is behind a router, which sends packets for the VIP by its own routes", "use predecessor.forward: ipip or gue"}}
	}
	return judgeRoom(subject, path.MTU, plan.Overhead(&model.Service{Forward: s.Predecessor.Forward}, address), plan.ClientHeaders(s.HasIPv6()))
}
