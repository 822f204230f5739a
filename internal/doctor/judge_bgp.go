package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
)

// bgpPort is where routers listen (RFC 4271).
const bgpPort = 179

// neighborFacts are the way to a router.
type neighborFacts struct {
	Err    error      // no route, or it does not answer
	By     netip.Addr // router before it; invalid: it is on a link of this host
	Asked  bool       // whether it takes connections
	Answer error
}

// judgeBGP is about what a load balancer that announces VIPs needs.
func judgeBGP(f *facts) (out []Finding) {
	node := f.File.Fleet.Node(f.Name)
	if f.Role != RoleLB || node == nil || node.BGP.IsZero() {
		return nil
	}
	b := &node.BGP
	if f.Password != nil {
		out = append(out, Finding{"bgp", "password_file", Problem, f.Password.Error(), "write the password into it, of mode 600"})
	}
	if b.ListenPort != 0 && !f.Daemon.runs() && slices.ContainsFunc(f.Host.Listening[model.ProtocolTCP], func(at netip.AddrPort) bool { return at.Port() == b.ListenPort }) {
		out = append(out, Finding{"bgp", "listen_port", Problem, fmt.Sprintf("another process listens at port %d", b.ListenPort), "stop the routing daemon that runs here, or remove listen_port: the load balancer connects to its neighbours"})
	}
	for _, n := range b.Neighbors {
		out = append(out, judgeNeighbor(b, n, f.Neighbors[n.Address])...)
	}
	if len(out) == 0 {
		asked := !slices.ContainsFunc(b.Neighbors, func(n model.Neighbor) bool { return !f.Neighbors[n.Address].Asked })
		found := "AS %d; routers that there is a way to: %d (port 179 was not tried: " + api.Ctl(f.Instance) + " bgp show lists sessions)"
		if asked {
			found = "AS %d; routers that take connections: %d"
		}
		out = append(out, ok("bgp", f.Name, found, b.AS, len(b.Neighbors)))
	}
	return out
}

func judgeNeighbor(b *model.BGP, n model.Neighbor, way neighborFacts) []Finding {
	subject := "neighbor " + n.Address.String()
	switch {
	case errors.Is(way.Err, netdev.ErrUnresolved):
		return []Finding{silentHop("bgp", subject, "the router", way.Err, "correct the address, and check the cabling, VLAN and subnet of this host")}
	case way.Err != nil:
		return []Finding{{"bgp", subject, Problem, way.Err.Error(), "correct the address, or add a route to it"}}
	case way.By.IsValid() && b.Multihop == 0 && b.TTLSecurity < 2 && b.AS != b.ASOf(n):
		return []Finding{{"bgp", subject, Problem, fmt.Sprintf("is behind %s: packets to it end there, as their TTL is 1", way.By), "name the router on this host's link, or give multihop"}}
	case way.By.IsValid() && b.BFD.Interval != 0:
		return []Finding{{"bgp", subject, Problem, fmt.Sprintf("is behind %s, and BFD is for one hop", way.By), "name the router on this host's link, or remove bfd"}}
	case way.Asked && way.Answer != nil:
		return []Finding{{"bgp", subject, Problem, fmt.Sprintf("takes no connection at port %d: %v", bgpPort, way.Answer), "configure this load balancer as its neighbour (docs/run/bgp.md), and let TCP through"}}
	}
	return nil
}
