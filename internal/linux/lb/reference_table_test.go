// Reference of bpf/lb/affinity/table.h and assign.h: the entries of connection tables.
package lb

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/plan"
)

// refEntry is one index of a connection table that is not free.
type refEntry struct {
	connection refConnection
	id         uint16
	state      conntable.State
	suspect    bool
	packets    uint32
	bytes      uint64
	inWindow   uint32 // packets, where the service has a limit; the reference knows one window
	last       uint32 // packet, as connectionClock tells
}

// refTables are the connection tables: the reference of bpf/lb/state/connections.h, with a loop where the program has a word. Entries are
// numbered as in the program's memory, where the tables of all services and their former ones lie.
type refTables struct {
	places      map[string]plan.TablePlace
	entries     map[uint32]*refEntry // ended ones too
	generations map[uint32]uint8     // how often an index was given away
	assigned    map[uint32]refAssignment
}

// refAssignment is the entry that a connection has and of which its server has not been told for sure.
type refAssignment struct {
	connection refConnection
	entry      uint32
}

func newRefTables() refTables {
	return refTables{map[string]plan.TablePlace{}, map[uint32]*refEntry{}, map[uint32]uint8{}, map[uint32]refAssignment{}}
}

// move gives a service another table, which is empty.
func (t *refTables) move(service string, place plan.TablePlace) {
	t.places[service] = place
	for entry := place.Base * conntable.BlockEntries; entry < (place.Base+place.Blocks)*conntable.BlockEntries; entry++ {
		delete(t.entries, entry)
		delete(t.generations, entry)
	}
}

func (r *reference) tableHash(s *plan.Service, c refConnection) uint64 {
	key := cookie.ServiceKey(r.want.Keys.Placement, s.VIP, s.Protocol)
	return conntable.Hash(key.K0, key.K1, c.client, c.servicePort)
}

// partition returns the entries that a connection may have, and before them the one of index 0.
func (t *refTables) partition(service string, hash uint64) (first, end uint32) {
	place := t.places[service]
	partition := conntable.PartitionOf(hash, conntable.Partitions(place.Blocks, place.IndexBits))
	first = place.Base*conntable.BlockEntries + conntable.Entry(partition, 0, place.IndexBits)
	return first, first + 1<<place.IndexBits
}

// add gives a connection the lowest free index of its partition, or else the lowest of those that have ended.
func (t *refTables) add(hash uint64, fresh refEntry) (entry uint32, ok bool) {
	first, end := t.partition(fresh.connection.service, hash)
	for _, ended := range []bool{false, true} {
		for entry := first + 1; entry < end; entry++ {
			if old := t.entries[entry]; old == nil && !ended || old != nil && ended && old.state >= conntable.StateFinished {
				t.entries[entry] = &fresh
				t.generations[entry]++
				return entry, true
			}
		}
	}
	return 0, false
}

// of returns an entry if it is that connection's: no connection changes its server.
func (t *refTables) of(entry uint32, c refConnection, id uint16) *refEntry {
	if e := t.entries[entry]; e != nil && e.connection == c && e.id == id {
		return e
	}
	return nil
}

// isBusy reports whether an assignment is still needed: for about a second it keeps its place.
func (t *refTables) isBusy(a refAssignment) bool {
	e := t.entries[a.entry]
	return e != nil && e.state == conntable.StateNew && connections.Clock()-e.last < 1<<10
}

// byTable is what the table makes of a packet whose cookie is valid and says plain.
func (r *reference) byTable(s *plan.Service, p *refPacket, plain uint16, echo uint32) refDecision {
	layout, connection := layoutOf(s), connectionOf(s, p)
	node, index, id := layout.Split(plain)
	d := refDecision{verdict: lbVerdictFORWARDED_BY_COOKIE, ids: []uint16{id}}
	hash := r.tableHash(s, connection)
	base, _ := r.connections.partition(s.Name, hash)
	entry := r.connections.of(base+uint32(index), connection, id)
	if entry != nil && node == r.want.Tier.ID {
		if entry.state == conntable.StateNew {
			entry.state = conntable.StateOpen
		}
		d.verdict = lbVerdictFORWARDED_BY_TABLE
	} else {
		var at uint32
		if at, d.verdict = r.assign(s, p, hash, id); d.verdict != lbVerdictFORWARDED_BY_TABLE && d.verdict != lbVerdictFORWARDED_ADDED {
			return d
		}
		entry = r.connections.entries[at]
		told := echo ^ uint32(plain^layout.Join(r.want.Tier.ID, uint16(at-base), id))
		d.echo = &told
	}
	entry.count(p, s.Table.PacketLimit, &d)
	return r.byScrubber(s, entry, d)
}

// assign finds or makes an entry for a connection whose cookie names none of this node's.
func (r *reference) assign(s *plan.Service, p *refPacket, hash uint64, id uint16) (at uint32, verdict lbVerdict) {
	connection, t := connectionOf(s, p), &r.connections
	place, _ := conntable.Assignment(hash, 0)
	first, end := t.partition(s.Name, hash)
	a := t.assigned[place]
	if e := t.of(a.entry, connection, id); a.connection == connection && a.entry >= first && a.entry < end && e != nil && e.state < conntable.StateFinished {
		return a.entry, lbVerdictFORWARDED_BY_TABLE
	}
	if p.reset() || p.fin() || t.isBusy(a) {
		return 0, lbVerdictFORWARDED_BY_COOKIE
	}
	at, ok := t.add(hash, refEntry{connection: connection, id: id, state: conntable.StateNew, suspect: r.isSuspect(s, p.source)})
	if !ok {
		return 0, lbVerdictFORWARDED_TABLE_FULL
	}
	t.assigned[place] = refAssignment{connection, at}
	return at, lbVerdictFORWARDED_ADDED
}

func (e *refEntry) count(p *refPacket, limit uint32, d *refDecision) {
	e.packets++
	e.bytes += uint64(p.length)
	e.last = connections.Clock()
	if limit > 0 {
		if e.inWindow >= packetsOfWindow(limit) {
			d.verdict, d.ids, d.echo = lbVerdictDROPPED_OVER_LIMIT, nil, nil
		} else {
			e.inWindow++
		}
	}
	switch {
	case p.reset():
		e.state = conntable.StateReset
	case p.fin():
		e.state = max(e.state, conntable.StateFinished)
	}
}

// packetsOfWindow turns packets per second into those of 2^30 ns.
func packetsOfWindow(perSecond uint32) uint32 {
	return min(uint32((uint64(perSecond)<<30+999_999_999)/1_000_000_000), 65535)
}

// byScrubber sends a suspect's packets there first.
func (r *reference) byScrubber(s *plan.Service, entry *refEntry, d refDecision) refDecision {
	scrubber := s.Server(s.Table.Scrubber)
	if !entry.suspect || scrubber == nil || len(d.ids) == 0 || scrubber.ID == d.ids[0] || serverIn(s, scrubber.ID) == nil {
		return d
	}
	d.verdict, d.ids, d.stops = lbVerdictFORWARDED_BY_SCRUBBER, []uint16{scrubber.ID}, d.ids
	return d
}

func (r *reference) isSuspect(s *plan.Service, client netip.Addr) bool {
	for _, prefix := range r.suspects[s.Name] {
		if s.Table.Scrubber != "" && prefix.Contains(client) {
			return true
		}
	}
	return false
}
