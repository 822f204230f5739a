package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ballast-lb/ballast/internal/algo/candidates"
	"github.com/ballast-lb/ballast/internal/algo/history"
	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/algo/places"
	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/algo/wcmp"
	"github.com/ballast-lb/ballast/internal/model"
)

// Path is how frames reach a server; the zero value: not known.
type Path struct {
	Ifindex                   uint32
	VLAN                      uint16
	Source                    netip.Addr
	SourceMAC, DestinationMAC [6]byte
	MTU                       uint16
	OnLink                    bool // the next hop is the address itself, and no router
	// Here: the server is this host. Source is its own address then, and of the rest there is nothing.
	Here bool
}

// Known reports whether there is a way.
func (p Path) Known() bool { return p.Here || p.Ifindex != 0 }

// ServesHere reports whether packets of a service can be given to a server on the load balancer's own host: those that go to its agent
// encapsulated, and whose answers need not come by the load balancer.
func ServesHere(s *model.Service) bool {
	return s.Forward.Tunnels() && s.Return != model.ReturnThrough && s.Session == model.SessionNone && !s.Functions()
}

// Service is one service as it should be, with what the model does not know.
type Service struct {
	model.Service
	// Removed servers have left the configuration; their connections have not ended (Cheetah III-A: AllServers).
	Removed []model.Server
	// Past holds what the table was made of before, oldest first; used where no published table tells, or it is older.
	Past [][]model.Share
	// NoCookie are ids of servers that cannot take part in return: through.
	NoCookie map[uint16]bool
	// Down are ids of servers that get no new connections, as if they were draining, because they are not healthy.
	Down map[uint16]bool
	// Weights are the soft weights of awrr (turns of a round), awfd and lcf (classes), by id. Where none are known awrr goes by the
	// configured weights, and for awfd and lcf all servers are alike. Where others are, one without a weight has an average turn
	// (awrr), or waits until it gets one.
	Weights map[uint16]uint16
	// Starting are the servers that have only a part of their weight yet. Not of placed policies: their tables are the same on every node.
	Starting slowstart.Parts
	// Flooded turns syn_proxy auto on.
	Flooded bool
}

func (s *Service) answersSYNs() bool {
	return s.SYNProxy == model.SYNProxyAlways || s.SYNProxy == model.SYNProxyAuto && s.Flooded
}

// takingNew are the servers that may be given new connections, with their configured weights.
func (s *Service) takingNew() []model.Share {
	return slices.DeleteFunc(s.Shares(), func(share model.Share) bool { return s.Down[share.ID] })
}

// withoutOff returns the service without the servers that get no packets at all.
func (s *Service) withoutOff() *Service {
	off := func(server model.Server) bool { return server.State == model.StateOff }
	if !slices.ContainsFunc(s.Servers, off) && !slices.ContainsFunc(s.Removed, off) {
		return s
	}
	rest := *s
	rest.Servers = slices.DeleteFunc(slices.Clone(s.Servers), off)
	rest.Removed = slices.DeleteFunc(slices.Clone(s.Removed), off)
	return &rest
}

// Want is all that the tables should say.
type Want struct {
	Keys     model.Keys
	Services []Service
	Paths    map[netip.Addr]Path
	Tier     Tier
	Replicas Replicas
	Rejects  bool // packets to VIPs that are for no service are answered
}

// image is the compiled form of a service: all but where in the tables it lies.
type image struct {
	row     ServiceRow // at the main VIP; without number, bases and counts, but for those of blocks
	main    netip.Addr
	others  map[netip.Addr]ServiceRow // at further VIPs
	vips    []VIPKey
	joins   map[VIPKey]uint16    // mptcp: ids of servers
	servers map[uint16]ServerRow // without counter
	takers  []model.Share        // who may be given new connections; nil after Restore
	rounds  []uint64             // without counters
	slots   []history.Column
	configs *QUICConfigs   // nil: none
	session *SessionConfig // nil: none
	allow   []netip.Prefix // sorted

	predecessors []ServerRow
	table        table // what the slots were made of; zero after Restore
	returns      map[ReturnKey]returning
}

// table is what decides about the owners of slots: filling them is most of the work of an update, and most updates change
// other things.
type table struct {
	policy model.Dispatch // hash, wcmp, or else maglev
	slots  uint32
	shape  history.Shape
	shares []model.Share
	places map[uint16]uint16 // by source: of ids in other services' tables; nil: ids are their own

	// What of the pools before has been pushed: configured, unlike shares, does not depend on health.
	configured []model.Share
	past       [][]model.Share
}

// secondChance is the shape of the tables of services without candidates: an owner and two before, for whom packets have room.
var secondChance = history.Shape{Columns: 1, Depth: 3}

func tableOf(s *Service) table {
	t := table{policy: placement(s.Dispatch), slots: s.TableSlots, shape: shapeOf(&s.Service), shares: s.takingNew(), configured: s.Shares(), past: s.Past}
	if s.BySource() {
		t.places = placesOf(s)
	}
	return t
}

func shapeOf(s *model.Service) history.Shape {
	if placement(s.Dispatch) == model.DispatchChoices {
		return history.Shape{Columns: int(s.Choices.Candidates), Depth: int(s.Choices.History)}
	}
	return secondChance
}

func (t *table) equal(o *table) bool {
	return t.policy == o.policy && t.slots == o.slots && t.shape == o.shape && slices.Equal(t.shares, o.shares) && maps.Equal(t.places, o.places)
}

// placesOf are the places of a service's servers, by id. Those of servers that have left do not change the others'.
func placesOf(s *Service) map[uint16]uint16 {
	order := func(a, b model.Server) int { return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port)) }
	servers := slices.Concat(slices.SortedFunc(slices.Values(s.Servers), order), slices.SortedFunc(slices.Values(s.Removed), order))
	addresses := make([]netip.Addr, len(servers))
	for i := range servers {
		addresses[i] = servers[i].Address
	}
	byID := make(map[uint16]uint16, len(servers))
	for i, place := range places.Of(addresses) {
		byID[servers[i].ID] = place
	}
	return byID
}

// owners are the ids of who owns the slots.
func (t *table) owners(shares []model.Share) []uint16 {
	if t.places == nil {
		return t.fill(shares)
	}
	placed, ids := make([]model.Share, 0, len(shares)), make(map[uint16]uint16, len(shares))
	for _, share := range shares {
		if place, known := t.places[share.ID]; known { // of a past that nobody remembers the addresses of
			placed, ids[place] = append(placed, model.Share{ID: place, Weight: share.Weight}), share.ID
		}
	}
	owners := t.fill(placed)
	for i, place := range owners {
		owners[i] = ids[place]
	}
	return owners
}

func (t *table) fill(shares []model.Share) []uint16 {
	switch t.policy {
	case model.DispatchHash:
		return modulo.Table(t.slots, shares)
	case model.DispatchWCMP:
		return wcmp.Table(t.slots, shares)
	}
	return candidates.Columns(t.slots, t.shape.Columns, shares) // of one column: Maglev
}

// compileAll makes the images of all services, on all CPUs: a table of slots takes a fraction of a millisecond, and there may be
// thousands. before are the services as they are published, in the same order.
func compileAll(want *Want, before []*published) []image {
	images := make([]image, len(before))
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(before)) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(before); i = int(next.Add(1)) - 1 {
				images[i] = compile(want, &want.Services[i], &before[i].image)
			}
		})
	}
	group.Wait()
	return images
}

// compile makes the image of a service. before is the one that is published now, the zero value: none.
func compile(want *Want, s *Service, before *image) image {
	configured := &s.Service
	s = s.ofTier(&want.Tier).withoutOff()
	img := image{row: serviceRow(&want.Keys, &s.Service), main: mainVIP(&s.Service, before), servers: map[uint16]ServerRow{}, returns: map[ReturnKey]returning{}}
	img.configs = quicConfigs(&want.Keys, &s.Service)
	img.row.layCookie(&want.Keys, configured, &want.Tier)
	img.row.keepConnections(s, &want.Tier)
	img.vips, img.allow = destinationsOf(&s.Service), sorted(s.Allow)
	for _, server := range slices.Concat(s.Removed, s.Servers) {
		img.servers[server.ID] = serverRow(want, s, &server).makeRoom(configured, server.Address, &want.Tier)
	}
	img.succeed(want, s, configured.SendsToNodes(want.Tier.Tier))
	img.leaveSessions(s)
	if s.answersSYNs() {
		img.row.SYNProxy = 1
	}
	img.session = sessionConfig(&want.Keys, &s.Service, img.servers)
	img.joins = joins(want, s, img.servers)
	if s.Return == model.ReturnThrough {
		img.addReturns(want, s)
	}
	img.takers = takers(want, s)
	img.layTurns(s, before)
	img.table = tableOf(s)
	img.row.Columns = uint8(img.table.shape.Columns)
	img.slots = img.placeSlots(s, before)
	img.row = img.row.at(&want.Keys, &s.Service, img.main)
	for _, vip := range s.VIPs() {
		if vip != img.main {
			if img.others == nil {
				img.others = map[netip.Addr]ServiceRow{}
			}
			img.others[vip] = img.row.at(&want.Keys, &s.Service, vip)
		}
	}
	return img
}

// mainVIP is the address whose row a service's own number names: the one that it was before, also when the service has it no more, as packets to it
// are under way yet.
func mainVIP(s *model.Service, before *image) netip.Addr {
	if before.main.IsValid() {
		return before.main
	}
	return s.VIP
}

// placement is the policy that places what carries no cookie.
func placement(dispatch model.Dispatch) model.Dispatch {
	if dispatch.Placed() {
		return dispatch
	}
	return model.DispatchMaglev
}

// returning is whose answers a return key recognises.
type returning struct {
	id      uint16
	removed bool // it has left this service, and may be in another one by now
}

func (img *image) addReturns(want *Want, s *Service) {
	if s.Functions() {
		img.addFunctions(want, s)
		return
	}
	for i, server := range slices.Concat(s.Removed, s.Servers) {
		for _, port := range s.Ports {
			key := ReturnKey{Address: WireAddress(s.VIP), Port: wirePort(port), Protocol: uint8(s.Protocol)}
			if s.Forward == model.ForwardNAT {
				key.Address = WireAddress(server.Address)
				if server.Port != 0 {
					key.Port = wirePort(server.Port)
				}
			} else if key.MAC = want.Paths[server.Address].DestinationMAC; key.MAC == [6]byte{} {
				continue // without a MAC address the key would be that of any server
			}
			img.returns[key] = returning{server.ID, i < len(s.Removed)}
		}
	}
}

// missed are pools after the published one, in updates that this node has not got. Where the past has that one more than once the first counts, and where it
// has not that one all: who pushes the same again changes nothing, as long as every column has an owner. Health is no pool: what it has changed is not in
// the past.
func (img *image) missed(s *Service, before *image, known func(id uint16) bool) [][]model.Share {
	made := func(shares []model.Share) bool { return slices.Equal(shares, before.table.configured) }
	if before.table.slots == 0 { // restored: the slots alone tell
		if at := img.reached(s, before.slots, known); at >= 0 {
			return s.Past[at:]
		}
		made = func(shares []model.Share) bool {
			return slices.EqualFunc(before.slots, img.table.owners(shares), func(c history.Column, owner uint16) bool { return c.Owners[0] == owner })
		}
	} else if samePools(s.Past, before.table.past) {
		return nil
	} else if at := goesOn(s.Past, append(slices.Clone(before.table.past), before.table.configured)); at > 0 {
		return s.Past[at:]
	}
	return s.Past[slices.IndexFunc(s.Past, made)+1:]
}

// reached is how many pools of the past these slots have seen, as those of who has seen all from the first on; -1: they have seen others.
func (img *image) reached(s *Service, published []history.Column, known func(id uint16) bool) int {
	var slots []history.Column
	for i, shares := range append(slices.Clone(s.Past), img.table.shares) {
		if slots = history.Push(slots, img.table.shape.Columns, img.table.owners(shares), img.table.shape, known); slices.Equal(slots, published) {
			return min(i+1, len(s.Past))
		}
	}
	return -1
}

func samePools(a, b [][]model.Share) bool { return slices.EqualFunc(a, b, slices.Equal) }

// goesOn is how many pools at the beginning of a past are what another one ends with; 0: they have nothing in common. The most, as pools may repeat.
func goesOn(past, other [][]model.Share) int {
	for length := min(len(past), len(other)); length > 0; length-- {
		if samePools(past[:length], other[len(other)-length:]) {
			return length
		}
	}
	return 0
}

func (img *image) placeSlots(s *Service, before *image) []history.Column {
	known := func(id uint16) bool { _, ok := img.servers[id]; return ok }
	forgotten := func() bool {
		for id := range before.servers {
			if !known(id) {
				return true
			}
		}
		return false
	}
	columns, missed := img.table.shape.Columns, s.Past
	if before.slots != nil {
		columns, missed = int(before.row.Columns), img.missed(s, before, known)
	}
	if before.slots != nil && len(missed) == 0 && img.table.equal(&before.table) && !forgotten() {
		return before.slots
	}
	owners, slots := img.table.owners(img.table.shares), before.slots
	if slots == nil && len(s.Past) == 0 {
		undrained := s.SharesBeforeDrain()
		if slices.Equal(undrained, img.table.shares) {
			return history.First(owners, nil, img.table.shape)
		}
		return history.First(owners, img.table.owners(undrained), img.table.shape)
	}
	for _, shares := range missed {
		slots = history.Push(slots, columns, img.table.owners(shares), img.table.shape, known)
		columns = img.table.shape.Columns
	}
	return history.Push(slots, columns, owners, img.table.shape, known)
}
