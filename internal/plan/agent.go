package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/acceptance"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/model"
)

// Flags of an AgentRow: enum served_flag.
const (
	AgentCookie  = 1
	AgentRetired = 2
	AgentChoices = 4
	AgentHistory = 8
	AgentNoNew   = 16
	AgentTakes   = 32 // connections that load balancers begin
	AgentSession = 64
	AgentProxied = 128 // syn_proxy: an empty acknowledgement begins a connection
)

// HistoryBits is how much of a timestamp affinity history takes: HISTORY_BITS of bpf/wire/history.h.
const HistoryBits = 2

// AgentRow is struct served: a service as one of its servers sees it.
type AgentRow struct {
	CookieKey    [2]cookie.Key // by parity of the epoch
	SYNCookieKey cookie.Key    // with AgentTakes
	ID           uint16
	CookieBits   uint8
	EpochParity  uint8 // of the key to write with
	Flags        uint8
	IDBits       uint8 // of the cookie, for the id; above them, what a load balancer put there

	// With AgentChoices: when the server accepts what another candidate could take as well.
	Acceptance uint16 // the service's place in the arrays of bpf/server/accept/acceptance.h
	Threshold  uint32 // static: the load must be less; dynamic: the limit that it begins with
	Window     uint16 // dynamic: attempts
	Low, High  uint16 // of a window: see acceptance.Bounds
	Policy     uint8
	Load       uint8

	SessionScale uint8 // with AgentTakes: of windows
	Withheld     uint8 // a port of mptcp that new connections are not told

	PredecessorForward uint8 // how what is not of this server goes there: its model.Forward, and 1; 0: not at all
	_                  uint8
	Predecessor        [16]byte
}

// Retired is the row for the connections that a service leaves behind when the server no longer takes part.
func (r AgentRow) Retired() AgentRow {
	r.Acceptance, r.Threshold, r.Window, r.Low, r.High, r.Policy, r.Load = 0, 0, 0, 0, 0, 0, 0
	r.SYNCookieKey, r.SessionScale = cookie.Key{}, 0
	r.PredecessorForward, r.Predecessor = 0, [16]byte{}
	if r.Flags &^= AgentChoices | AgentNoNew | AgentTakes | AgentSession | AgentProxied; r.Flags&AgentCookie != 0 {
		r.Flags = AgentRetired | r.Flags&AgentHistory
	}
	return r
}

// Agent is what the maps of a server must hold, and what its daemon needs to check.
type Agent struct {
	Served    map[VIPKey]AgentRow // a zero row stands for an address itself
	Addresses []netip.Addr        // of this server, as its services name it
	VIPs      []netip.Addr
	Direct    []AgentService // whose packets come to this host at their VIP
	Stops     []netip.Addr   // other servers that a second chance may lead to, and predecessors
	HandsTo   []netip.Addr   // those among them that load balancers name to this server as stops, and predecessors
	Marking   []string       // names of the services whose connections carry cookies, or the column that accepted them
	Choices   []AgentChoice
	QUIC      []AgentService // whose connection ids name this server
	Sessions  []AgentService // whose session tickets name this server
	Begun     []AgentService // whose connections may begin at load balancers: of sessions, and others
	Joins     []Join
}

// AgentService is a service of this server.
type AgentService struct {
	Service *model.Service // of the fleet
	Server  *model.Server  // its entry that is this host
}

// AgentChoice is a service of this server with dispatch choices.
type AgentChoice struct {
	Service    *model.Service // of the fleet
	Server     *model.Server  // its entry that is this host
	Acceptance uint16         // its place in the arrays of bpf/server/accept/acceptance.h
}

// NewAgent derives an agent's state from the fleet. mine tells which server entries are this host. Services without
// such an entry, or whose answers return through the load balancer, are left out.
func NewAgent(fleet *model.Fleet, mine func(*model.Server) bool) (Agent, error) {
	agent := Agent{Served: map[VIPKey]AgentRow{}}
	var errs []error
	for i := range fleet.Services {
		service := &fleet.Services[i]
		quic := service.Affinity == model.AffinityQUIC
		if service.Return == model.ReturnThrough && !quic {
			continue
		}
		here, err := ServerHere(service, mine)
		if err != nil {
			errs = append(errs, err)
		}
		if here != nil && quic {
			agent.QUIC = append(agent.QUIC, AgentService{service, here})
		}
		if here != nil && service.Return != model.ReturnThrough {
			agent.add(fleet, service, here)
			agent.addJoins(fleet, service, here)
		}
	}
	for _, list := range []*[]netip.Addr{&agent.Addresses, &agent.VIPs, &agent.Stops, &agent.HandsTo} {
		slices.SortFunc(*list, netip.Addr.Compare)
		*list = slices.Compact(*list)
	}
	return agent, errors.Join(errs...)
}

// ServerHere returns the entry of a service that is this host, nil if none is. One that takes no new connections gives way to one that does,
// and one that is off to any other: what is for it comes to this host all the same, and gets the id of today.
func ServerHere(service *model.Service, mine func(*model.Server) bool) (here *model.Server, err error) {
	for i := range service.Servers {
		server := &service.Servers[i]
		switch {
		case !mine(server):
		case here == nil || server.State < here.State: // active, draining, off
			here = server
		case server.State == model.StateActive:
			err = fmt.Errorf("service %s: servers %s and %s are both this host: name one with --server", service.Name, here.Name, server.Name)
		}
	}
	return here, err
}

// Rekey adds what this host has served and, by the fleet, does not any more: the service lives on elsewhere, its keys rotate, and
// the connections that are still here must follow them. have are the rows published so far.
func (a *Agent) Rekey(fleet *model.Fleet, have map[VIPKey]AgentRow) {
	for i := range fleet.Services {
		service := &fleet.Services[i]
		a.keepJoins(fleet, service, have)
	}
	published := byList(have)
	for _, all := range []bool{false, true} { // who has all ports leaves those to others that they name
		for i := range fleet.Services {
			if service := &fleet.Services[i]; slices.Contains(service.PortRanges, model.AllPorts) == all {
				a.rekey(fleet, service, published, have)
			}
		}
	}
}

// byList are the keys of rows by their address and protocol.
func byList(rows map[VIPKey]AgentRow) map[PortKey][]VIPKey {
	keys := map[PortKey][]VIPKey{}
	for key := range rows {
		keys[key.List()] = append(keys[key.List()], key)
	}
	return keys
}

// rekey does so for one service, whose ports may have become a range, or single ones.
func (a *Agent) rekey(fleet *model.Fleet, service *model.Service, published map[PortKey][]VIPKey, have map[VIPKey]AgentRow) {
	for _, vip := range service.VIPs() {
		for _, key := range published[vipKey(vip, 0, uint8(service.Protocol)).List()] {
			row := have[key]
			if _, served := a.Served[key]; served || row.Flags == 0 || row.CookieBits != service.CookieBits || !service.HasAnyPort(key.Ports()) {
				continue
			}
			row = row.Retired()
			row.setKeys(fleet, service, vip)
			if service.Affinity.Cookies() {
				row.IDBits = service.IDBits()
			}
			a.Served[key] = row
		}
	}
}

// Place gives every service with dispatch choices its place in the arrays of bpf/server/accept/acceptance.h: the one that a row of it has, of those
// published so far, else one that none of them has. Rekey comes before it.
func (a *Agent) Place(have map[VIPKey]AgentRow) {
	taken := map[uint16]bool{0: true}
	for i := range a.Choices {
		c := &a.Choices[i]
		for _, key := range destinationsOf(c.Service) {
			at := have[key].Acceptance
			if c.Acceptance == 0 && !taken[at] {
				c.Acceptance, taken[at] = at, true
			}
		}
	}
	for _, row := range have {
		taken[row.Acceptance] = true
	}
	next := uint16(1)
	for i := range a.Choices {
		c := &a.Choices[i]
		for ; c.Acceptance == 0; next++ {
			if !taken[next] {
				c.Acceptance = next
			}
		}
		for _, key := range destinationsOf(c.Service) {
			row := a.Served[key]
			row.Acceptance = c.Acceptance
			a.Served[key] = row
		}
	}
}

// Knows reports whether the fleet is the one that the rows published so far are of: it has one of their services, or the key of one. Rows
// that were retired, with services that are gone, say nothing. Rekey comes before it.
func (a *Agent) Knows(fleet *model.Fleet, have map[VIPKey]AgentRow) bool {
	published := false
	for key, row := range have {
		if row.Flags&AgentCookie == 0 {
			continue
		}
		if _, known := a.Served[key]; known {
			return true
		}
		for epoch, secret := range fleet.Keys.Cookie {
			if cookie.ServiceKey(secret, key.VIP(), model.Protocol(key.Protocol)) == row.CookieKey[epoch&1] {
				return true
			}
		}
		published = published || row.Flags&AgentHistory == 0 // which has no key
	}
	return !published
}

// Keeps refuses what gives connections another cookie than they carry by the rows published so far, also where the host has left a service
// since: Rekey comes before it. Rows know epochs by their parity alone.
func (a *Agent) Keeps(fleet *model.Fleet, have map[VIPKey]AgentRow) error {
	published := byList(have)
	for i := range fleet.Services {
		service := &fleet.Services[i]
		for _, key := range destinationsOf(service) {
			before, after := have[key], a.Served[key]
			if before.Flags == 0 && key.Last != 0 { // its ports were single ones, or another range
				before = overlapping(have, published, key)
			}
			if before.Flags&AgentCookie == 0 || after.Flags == 0 || (before.Flags|after.Flags)&AgentHistory != 0 {
				continue
			}
			if before.ID != after.ID && after.Flags&AgentCookie != 0 {
				return &model.Invalid{Path: "services." + service.Name, Problem: fmt.Sprintf("the id of this server has changed from %d to %d, and living connections carry the old one", before.ID, after.ID),
					Remedy: "put the old one back: ids are the same on all nodes, as long as the server is there"}
			}
			if parity := before.EpochParity; after.CookieKey[parity] != before.CookieKey[parity] {
				return &model.Invalid{Path: "keys.cookie", Problem: "the key that living connections carry is not there, or has changed under its epoch",
					Remedy: "put the old one back and add the new key beside it, as the next epoch"}
			}
		}
	}
	return nil
}

// overlapping is a row whose ports a range has now, if no other one has the key of the row: that of all ports may have others'.
func overlapping(have map[VIPKey]AgentRow, published map[PortKey][]VIPKey, key VIPKey) AgentRow {
	for _, other := range published[key.List()] {
		if other.Ports().Overlaps(key.Ports()) && key.Ports() != model.AllPorts {
			return have[other]
		}
	}
	return AgentRow{}
}

func (r *AgentRow) setKeys(fleet *model.Fleet, service *model.Service, vip netip.Addr) {
	r.CookieKey = [2]cookie.Key{}
	r.EpochParity = uint8(fleet.Keys.Current & 1)
	for epoch, key := range fleet.Keys.Cookie {
		r.CookieKey[epoch&1] = cookie.ServiceKey(key, vip, service.Protocol)
	}
}

// choose says when this server accepts what another one could as well. Place comes after it.
func (r *AgentRow) choose(accept *model.Accept, server *model.Server) {
	r.Flags |= AgentChoices
	if !server.TakesNew() {
		r.Flags |= AgentNoNew
	}
	r.Policy, r.Load, r.Threshold, r.Window = uint8(accept.Policy), uint8(accept.Load), accept.Threshold, accept.Window
	r.Low, r.High = acceptance.Bounds(accept.Window, accept.Margin)
}

func (a *Agent) add(fleet *model.Fleet, service *model.Service, server *model.Server) {
	row := AgentRow{ID: server.ID}
	if service.Affinity.Cookies() {
		row.Flags = AgentCookie
		row.CookieBits, row.IDBits = service.CookieBits, service.IDBits()
		a.Marking = append(a.Marking, service.Name)
	} else if service.Affinity == model.AffinityHistory {
		row = AgentRow{Flags: AgentCookie | AgentHistory, CookieBits: HistoryBits}
		a.Marking = append(a.Marking, service.Name)
	}
	if service.Affinity == model.AffinityCookie && service.Dispatch != model.DispatchChoices { // also while load balancers do not know of sessions yet, or still do
		row.Flags |= AgentTakes
		row.SYNCookieKey, row.SessionScale = SYNCookieKey(&fleet.Keys, service.VIP), SessionScale
	}
	if p := &service.Predecessor; p.Exists() && service.Affinity.Cookies() {
		row.PredecessorForward, row.Predecessor = uint8(p.Forward)+1, WireAddress(p.Addresses[0])
		a.Stops, a.HandsTo = append(a.Stops, p.Addresses[0]), append(a.HandsTo, p.Addresses[0])
	}
	if service.SYNProxy != model.SYNProxyOff {
		row.Flags |= AgentProxied
	}
	if service.BegunForServers() {
		a.Begun = append(a.Begun, AgentService{service, server})
	}
	if service.Session == model.SessionTLS {
		row.Flags |= AgentSession
		a.Sessions = append(a.Sessions, AgentService{service, server})
	}
	if service.Dispatch == model.DispatchChoices {
		row.choose(&service.Choices.Accept, server)
		a.Choices = append(a.Choices, AgentChoice{Service: service, Server: server})
	}
	for _, vip := range service.VIPs() {
		if service.Affinity.Cookies() {
			row.setKeys(fleet, service, vip)
		}
		for _, key := range destinationsAt(service, vip) {
			a.Served[key] = row
		}
		a.Served[vipKey(vip, 0, 0)] = AgentRow{}
	}
	a.Direct = append(a.Direct, AgentService{service, server})
	a.Addresses = append(a.Addresses, server.Address)
	a.VIPs = append(a.VIPs, service.VIPs()...)
	for i := range service.Servers {
		if other := service.Servers[i].Address; other != server.Address {
			a.Stops = append(a.Stops, other)
			if HandsOn(service) {
				a.HandsTo = append(a.HandsTo, other)
			}
		}
	}
}

// HandsOn reports whether servers of a service hand packets on to others: load balancers name further stops.
func HandsOn(s *model.Service) bool {
	return s.Return == model.ReturnDirect && (s.Fallback == model.FallbackSecondChance || s.Dispatch == model.DispatchChoices)
}

// KnowsLoadBalancers refuses services whose packets this host sends on, where a file does not tell load balancers from others.
func (a *Agent) KnowsLoadBalancers(file *model.Fleet) error {
	if len(a.Choices) == 0 || len(file.TunnelsFrom) > 0 {
		return nil
	}
	return &model.Invalid{Path: "tunnels_from", Problem: fmt.Sprintf("service %s has dispatch choices: servers send its packets on, and whose is not known", a.Choices[0].Service.Name),
		Remedy: "list the addresses of the load balancers"}
}
