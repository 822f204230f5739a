// What an operator should know beside the verdict.
package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/model"
)

// target is whom a packet goes to.
type target struct {
	chosen  *ballastv1.Chosen
	address netip.Addr
	state   string // why it gets no new connections; empty: it does
}

// targetOf is the server of a service with an id, one that has left included, a node of the second tier or a predecessor.
func targetOf(now *dataplane.Snapshot, service *model.Service, id uint16) target {
	if id >= model.PredecessorID {
		if which := int(id - model.PredecessorID); which < len(service.Predecessor.Addresses) {
			address := service.Predecessor.Addresses[which]
			return target{chosen: &ballastv1.Chosen{Name: "predecessor", Address: address.String()}, address: address}
		}
	}
	of, servers := service, []model.Server(nil)
	if now.SendsToNodes(service) {
		of = now.SecondTier()
	} else {
		servers = now.Lingering(service.Name)
	}
	t := target{chosen: &ballastv1.Chosen{Id: uint32(id)}}
	is := func(s model.Server) bool { return s.ID == id }
	if i := slices.IndexFunc(servers, is); i >= 0 {
		t.take(&servers[i])
		t.state = "is removed: only connections that it has go there"
	}
	if i := slices.IndexFunc(of.Servers, is); i >= 0 {
		server := &of.Servers[i]
		t.take(server)
		t.state = ""
		switch {
		case now.FailingOf(of.Name)[id]:
			t.state = "fails its health checks: see ballast ctl server list"
		case !server.TakesNew():
			t.state = fmt.Sprintf("gets no new connections: it is %s, of weight %d", server.State, server.Weight)
		}
	}
	return t
}

func (t *target) take(server *model.Server) {
	t.chosen.Name, t.chosen.Address, t.address = server.Name, server.Address.String(), server.Address
}

// notesOn are what matters of a packet that is for a service, and what cannot be known of it here.
func notesOn(now *dataplane.Snapshot, service *model.Service, p *api.MadeUp, out *ballastv1.Explanation, t target) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if now.Incomplete || !now.Followed {
		note("the tables do not say all of what is wanted: see ballast ctl status")
	}
	if t.state != "" {
		note("%s %s", t.chosen.Name, t.state)
	}
	if why := now.Pathless[t.address]; why != "" {
		note("the kernel knows no path to %s now: %s", t.address, why)
	}
	if len(service.Allow) > 0 {
		if slices.ContainsFunc(service.Allow, func(prefix netip.Prefix) bool { return prefix.Contains(p.Client.Addr()) }) {
			note("allow has the client's address")
		} else {
			note("allow does not have the client's address: packets without a valid cookie are dropped")
		}
	}
	if service.SourceLimit.Rate > 0 && out.Verdict != "dropped_source_limit" {
		note("source_limit would let this packet pass now; a client that begins more connections may be over it later")
	}
	if len(out.Candidates) > 0 {
		note("the policy %s takes turns, draws or compares loads: which of the candidates a real packet gets is not known before", service.Dispatch)
	}
	segment := p.Protocol == model.ProtocolTCP && p.Flags&model.TCPSyn == 0
	if segment && !p.Timestamps && service.Affinity.Cookies() {
		note("segments of a living connection echo the server's cookie in TSecr, which only its client knows: give --tsecr as ballast ctl trace shows it")
	}
	switch out.Verdict {
	case "asked_peer":
		note("the load balancer that is asked knows the connection's server, or gives it the one that this node proposes: its answer decides")
	case "answered_syn":
		note("this node answers in the server's place: the server is chosen when the client's next segment comes")
	}
	if out.Server != nil && out.Server.Name != "predecessor" && service.Forward.Tunnels() && !now.SendsToNodes(service) {
		notes = append(notes, atServer(service, p, out)...)
	}
	return notes
}

// atServer is what the agent of the server does, which no load balancer sees.
func atServer(service *model.Service, p *api.MadeUp, out *ballastv1.Explanation) (notes []string) {
	if len(out.Stops) > 0 {
		return []string{"the agent of a server that does not take the packet sends it to the next stop"}
	}
	if p.Protocol == model.ProtocolTCP && p.Flags&(model.TCPSyn|model.TCPRst) == 0 {
		return []string{"the agent decapsulates it; where the server does not have the connection, its kernel answers with RST"}
	}
	return []string{"the agent decapsulates it: whether the application answers is not known here"}
}

// unserved is why a packet may be for no service.
func unserved(now *dataplane.Snapshot, p *api.MadeUp) (notes []string) {
	if !now.Followed {
		notes = append(notes, "this node has no state yet: see ballast ctl status")
	}
	for i := range now.Running.Services {
		if s := &now.Running.Services[i]; s.HasVIP(p.VIP.Addr()) {
			return append(notes, fmt.Sprintf("%s is a VIP of service %s, but %s port %d is not of it: see ballast ctl service list", p.VIP.Addr(), s.Name, p.Protocol, p.VIP.Port()))
		}
	}
	return append(notes, fmt.Sprintf("%s is no VIP of a service", p.VIP.Addr()))
}
