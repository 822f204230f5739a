package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/model"
)

// Tables knows what is published and what is free. It is not safe for concurrent use.
type Tables struct {
	numbers, serviceRows, serverRows, counters, ids, slots, rounds, blocks, configs, lists, replicaRows space

	limits     Limits
	services   []*published
	named      map[string]*published
	orphans    map[ReturnKey]uint64 // published returns of services that are gone: an update was cut off
	replicas   ReplicaConfig        // that is published
	replicaRow span
	former     map[VIPKey]uint32         // addresses that were VIPs: routers may still send here what is for them
	unlisted   map[uint32][]netip.Prefix // lists of allowed prefixes that no service has: an update was cut off
	rejecting  map[VIPKey]uint32         // VIPs that refuse what none of their services takes -> VIPRejects
}

// published is a service as packets see it now.
type published struct {
	name                string
	number, row         uint32
	others              map[netip.Addr]doorway // of further VIPs
	image               image
	ids, slots, rounds  span
	connections         span // blocks
	configs             span // groups
	allowed             span // list
	predecessors        predecessors
	serverRow, counters map[uint16]uint32
}

// NewTables returns empty tables.
func NewTables(l Limits) *Tables {
	services, servers := l.Rows()
	return &Tables{
		numbers:     newSpace("services", 1, l.Services+1),
		serviceRows: newSpace("service rows", 1, services),
		serverRows:  newSpace("server rows", 1, servers),
		counters:    newSpace(spaceOfServers, 1, l.Servers),
		ids:         newSpace("server ids", 0, l.ServerIDs),
		slots:       newSpace(spaceOfSlots, 0, l.Slots),
		rounds:      newSpace("turns", 0, l.Rounds),
		blocks:      newSpace("blocks of table entries", 0, l.Entries/conntable.BlockEntries),
		configs:     newSpace("services with affinity quic or session tls", 1, QUICGroups),
		lists:       newSpace("lists of allowed prefixes", 1, l.lists()+1),
		replicaRows: newSpace("lists of load balancers", 1, 3),
		limits:      l,
		former:      map[VIPKey]uint32{},
		rejecting:   map[VIPKey]uint32{},
	}
}

// Place says where a service's counters are.
type Place struct {
	Number   uint32
	Numbers  map[netip.Addr]uint32 // by VIP: what its packets go by
	Counters map[uint16]uint32     // server id -> counter index
	Nodes    bool                  // first tier: the ids are those of nodes of the second, not of servers
	Table    TablePlace
}

// Places returns where the counters of every published service are, by service name. What is given out stays as it is, also when an
// update changes the tables, and the caller must not change it.
func (t *Tables) Places() map[string]Place {
	places := make(map[string]Place, len(t.services))
	for _, s := range t.services {
		places[s.name] = Place{Number: s.number, Numbers: s.numbers(), Counters: s.counters, Nodes: s.image.leadsToNodes(),
			Table: TablePlace{s.connections.base, s.connections.count, s.image.row.IndexBits}}
	}
	return places
}

// Update returns the changes that make the tables say what is wanted, and takes them as done. On an error (no room)
// nothing has changed.
func (t *Tables) Update(want *Want) ([]Change, error) {
	next := t.clone()
	u := update{tables: next}
	if slices.ContainsFunc(next.spaces(), func(s *space) bool { return len(s.resting) > 0 }) {
		u.add(Grace{})
		next.release()
	}
	if err := u.run(want); err != nil {
		return nil, err
	}
	if len(u.changes) == 1 { // a grace period alone frees nothing that anybody waits for: what rests goes on resting
		if _, only := u.changes[0].(Grace); only {
			t.services, t.named = next.services, next.named
			return nil, nil
		}
	}
	*t = *next
	return u.changes, nil
}

func (t *Tables) spaces() []*space {
	return []*space{&t.numbers, &t.serviceRows, &t.serverRows, &t.counters, &t.ids, &t.slots, &t.rounds, &t.blocks, &t.configs, &t.lists, &t.replicaRows}
}

func (t *Tables) release() {
	for _, s := range t.spaces() {
		s.release()
	}
}

func (t *Tables) clone() *Tables {
	c := *t
	for _, s := range c.spaces() {
		*s = s.clone()
	}
	c.services = make([]*published, len(t.services))
	for i, s := range t.services {
		copied := *s
		copied.serverRow, copied.counters, copied.others = maps.Clone(s.serverRow), maps.Clone(s.counters), maps.Clone(s.others)
		c.services[i] = &copied
	}
	c.named = byName(c.services)
	return &c
}

// update collects the changes from the published services to the wanted ones.
type update struct {
	tables  *Tables
	changes []Change
	flips   []Change // what makes all that was written before visible
	after   []Change // what must wait until nothing leads there any more
}

func (u *update) add(c Change) { u.changes = append(u.changes, c) }

func (u *update) run(want *Want) error {
	u.clearLists()
	if err := u.publishReplicas(want); err != nil {
		return err
	}
	vipsBefore, returnsBefore := u.tables.destinations()
	maps.Copy(returnsBefore, u.tables.orphans)
	u.tables.orphans = nil
	kept := make(map[*published]bool, len(want.Services))
	find := u.tables.finder()
	services := make([]*published, len(want.Services))
	for i := range want.Services {
		s := &want.Services[i]
		p := find(s)
		if p != nil && p.image.leadsToNodes() != s.SendsToNodes(want.Tier.Tier) {
			p = nil // it begins anew: what packets left behind under its number has ids of servers in place of nodes, or the other way round
		}
		if p != nil && s.Return == model.ReturnThrough && p.image.main != s.VIP {
			p = nil // answers go by the row of its main VIP, which is another one yet
		}
		if p == nil {
			p = &published{serverRow: map[uint16]uint32{}, counters: map[uint16]uint32{}}
		}
		p.name = s.Name
		kept[p] = true
		services[i] = p
	}
	images := compileAll(want, services)
	for i, p := range services {
		if err := u.publish(p, images[i]); err != nil {
			return fmt.Errorf("service %s: %w", p.name, withRemedy(err, images))
		}
	}
	gone := slices.DeleteFunc(slices.Clone(u.tables.services), func(p *published) bool { return kept[p] })
	u.tables.services, u.tables.named = services, byName(services)
	u.tables.former, u.tables.rejecting = map[VIPKey]uint32{}, rejecting(services, want.Rejects)
	vips, returns := u.tables.destinations()
	if err := u.tables.checkRoom(vips); err != nil {
		return err
	}
	u.tables.rememberVIPs(vipsBefore, vips)
	if room := u.tables.limits.Servers; len(returns) > int(room) {
		return fmt.Errorf("no room for %d sources of answers (servers times ports of return: through services), only for %d: start the load balancer with --max-servers %d or more, or use fewer ports",
			len(returns), room, len(returns))
	}
	u.moveReturns(returnsBefore, returns, func() {
		u.changes = append(u.changes, u.flips...)
		u.moveVIPs(vipsBefore, vips)
	})
	for _, p := range gone {
		u.retire(p)
	}
	if len(u.after) > 0 { // packets that went by what is no more still look there
		u.add(Grace{})
		u.changes = append(u.changes, u.after...)
	}
	return nil
}

// finder returns a function that finds the published service that s goes on from: of its name, or after a restart, when names
// are not known, of one of its destinations. A service that keeps none of its addresses, or moves to another protocol, is a new one: its
// keys follow from those, and packets to the old address must not meet the new keys.
func (t *Tables) finder() func(s *Service) *published {
	names := byName(t.services)
	byVIP := make(map[VIPKey]*published, len(t.services))
	for _, p := range t.services {
		for _, key := range p.image.vips {
			byVIP[key] = p
		}
	}
	return func(s *Service) *published {
		if p := names[s.Name]; p != nil {
			kept := func(key VIPKey) bool { return key.Protocol == uint8(s.Protocol) && s.HasVIP(key.VIP()) }
			if slices.ContainsFunc(p.image.vips, kept) {
				return p
			}
			return nil
		}
		for _, key := range destinationsOf(&s.Service) {
			if p := byVIP[key]; p != nil && p.name == "" {
				return p
			}
		}
		return nil
	}
}

func byName(services []*published) map[string]*published {
	names := make(map[string]*published, len(services))
	for _, p := range services {
		names[p.name] = p
	}
	return names
}

func (u *update) publish(p *published, img image) error {
	t := u.tables
	fresh := p.number == 0
	if fresh {
		number, err := t.numbers.take(1)
		if err != nil {
			return err
		}
		p.number = number.base
		u.add(ClearService{p.number})
	}
	before := *p
	idsMoved, err := u.publishServers(p, img)
	if err != nil {
		return err
	}
	tablesMoved, err := u.publishTables(p, img, fresh)
	if err != nil {
		return err
	}
	if err := u.publishConnections(p, img); err != nil {
		return err
	}
	configsMoved, err := u.publishConfigs(p, img, fresh)
	if err != nil {
		return err
	}
	allowedMoved, err := u.publishAllowed(p, img, fresh)
	if err != nil {
		return err
	}
	predecessorsMoved, err := u.publishPredecessors(p, img)
	if err != nil {
		return err
	}
	u.countOpen(p, img, fresh)
	p.image = img
	moved := fresh || idsMoved || tablesMoved || configsMoved || allowedMoved || predecessorsMoved
	if moved || before.image.row != img.row {
		if p.row, err = u.publishRow(p, img.row, p.number, p.row); err != nil {
			return err
		}
	}
	return u.publishOthers(p, before.image.others, moved)
}

// placed is a row of the service with where everything lies.
func (p *published) placed(row ServiceRow, vip, at uint32) ServiceRow {
	row.Number, row.VIPNumber, row.Row = p.number, vip, at
	row.IDsBase, row.IDsCount = p.ids.base, p.ids.count
	row.RoundsBase, row.RoundsCount = p.rounds.base, p.rounds.count
	row.SlotsBase, row.SlotsCount = p.slots.base, p.slots.count/uint32(row.Columns)
	row.TableBase, row.TableBlocks = p.connections.base, p.connections.count
	row.Allow, row.PredecessorsBase = p.allowed.base, p.predecessors.ids.base
	if p.image.session != nil {
		row.Session = p.configs.base
	} else {
		row.QUICBase = p.configs.base * uint32(len(QUICConfigs{}))
	}
	return row
}

// countOpen starts the estimates of open connections where the new policy needs them and the old one did not keep them.
func (u *update) countOpen(p *published, img image, fresh bool) {
	if fresh || !img.row.countsOpen() || p.image.row.countsOpen() {
		return
	}
	for _, id := range sortedKeys(p.counters, cmp.Compare[uint16]) {
		u.add(CountOpen{p.counters[id]})
	}
}

// publishServers writes rows of new and changed servers and makes their ids name them; ids of servers that are gone lose their
// row at the end, when no table leads to them any more. moved: the range of ids is another one now.
func (u *update) publishServers(p *published, img image) (moved bool, err error) {
	t := u.tables
	if count := idsCount(img.servers); count > p.ids.count {
		ids, err := t.ids.take(count)
		if err != nil {
			return false, err
		}
		t.ids.give(p.ids)
		p.ids, moved = ids, true
		for i := range count { // a range may hold what an earlier owner left
			u.add(PointID{ids.base + i, 0})
		}
	}
	for _, id := range sortedKeys(img.servers, cmp.Compare[uint16]) {
		row := img.servers[id]
		old, known := p.image.servers[id]
		if !known {
			counter, err := t.counters.take(1)
			if err != nil {
				return false, err
			}
			p.counters[id] = counter.base
			u.add(ClearCounter{counter.base})
		}
		if !known || old != row {
			fresh, err := t.serverRows.take(1)
			if err != nil {
				return false, err
			}
			if known {
				t.serverRows.give(span{p.serverRow[id], 1})
			}
			p.serverRow[id] = fresh.base
			row.Counter = p.counters[id]
			u.add(WriteServer{fresh.base, row})
			u.add(PointID{p.ids.base + uint32(id), fresh.base})
		} else if moved {
			u.add(PointID{p.ids.base + uint32(id), p.serverRow[id]})
		}
	}
	for _, id := range sortedKeys(p.serverRow, cmp.Compare[uint16]) {
		if _, stays := img.servers[id]; stays {
			continue
		}
		if !moved {
			u.after = append(u.after, PointID{p.ids.base + uint32(id), 0})
		}
		u.after = append(u.after, RetireCounter{p.number, p.counters[id]})
		t.serverRows.give(span{p.serverRow[id], 1})
		t.counters.give(span{p.counters[id], 1})
		delete(p.serverRow, id)
		delete(p.counters, id)
	}
	return moved, nil
}

// publishTables writes the tables that changed to new ranges, and reports whether any moved.
func (u *update) publishTables(p *published, img image, fresh bool) (moved bool, err error) {
	t := u.tables
	if fresh || !slices.Equal(p.image.slots, img.slots) {
		to, err := t.slots.take(uint32(len(img.slots)))
		if err != nil {
			return false, err
		}
		t.slots.give(p.slots)
		p.slots, moved = to, true
		u.add(WriteSlots{to.base, img.slots})
	}
	if !fresh && img.continues(&p.image) {
		u.changes = append(u.changes, p.inPlace(img.rounds)...)
	} else if fresh || !slices.Equal(p.image.rounds, img.rounds) {
		to, err := t.rounds.take(uint32(len(img.rounds)))
		if err != nil {
			return false, err
		}
		t.rounds.give(p.rounds)
		p.rounds, moved = to, true
		u.add(WriteRounds{to.base, withCounters(img.rounds, img.row.Classes, p.counters)})
	}
	return moved, nil
}

func (u *update) retire(p *published) {
	t := u.tables
	u.after = append(u.after, PointService{p.number, 0})
	t.numbers.give(span{p.number, 1})
	t.serviceRows.give(span{p.row, 1})
	for _, vip := range sortedKeys(p.others, netip.Addr.Compare) {
		u.retireOther(p.others[vip])
	}
	t.slots.give(p.slots)
	t.rounds.give(p.rounds)
	t.blocks.give(p.connections)
	t.configs.give(p.configs)
	u.dropAllowed(p)
	u.dropPredecessors(&p.predecessors, true)
	t.ids.give(p.ids)
	for id, row := range p.serverRow {
		t.serverRows.give(span{row, 1})
		t.counters.give(span{p.counters[id], 1})
	}
}

// minIDs spares small services a move at every new id.
const minIDs = 16

// idsCount is the length of the range of ids: a power of two above the largest id.
func idsCount(servers map[uint16]ServerRow) uint32 {
	largest := uint32(minIDs - 1)
	for id := range servers {
		largest = max(largest, uint32(id))
	}
	return 1 << bits.Len32(largest)
}

func sortedKeys[K comparable, V any](m map[K]V, order func(a, b K) int) []K {
	return slices.SortedFunc(maps.Keys(m), order)
}

func vipOrder(a, b VIPKey) int {
	return cmp.Or(slices.Compare(a.Address[:], b.Address[:]), slices.Compare(a.Port[:], b.Port[:]), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Last, b.Last))
}

func returnOrder(a, b ReturnKey) int {
	return cmp.Or(slices.Compare(a.Address[:], b.Address[:]), slices.Compare(a.Port[:], b.Port[:]), slices.Compare(a.MAC[:], b.MAC[:]),
		cmp.Compare(a.Protocol, b.Protocol))
}
