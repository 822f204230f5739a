package datapath

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// refEntry is one index of a connection table that is not free.
type refEntry struct {
	connection refConnection
	id         uint16
	state      ConnectionState
	suspect    bool
	packets    uint32
	bytes      uint64
	inWindow   uint32 // packets, where the service has a limit; the reference knows one window
}

// refTable is the connection table of a service: the reference of bpf/state/connections.h, with a loop where the program has a word.
type refTable struct {
	place       plan.TablePlace
	entries     map[uint32]*refEntry // by number within the table; ended ones too
	generations map[uint32]uint8     // how often an index was given away
}

// refAssignment is the entry that a connection has and of which its server has not been told for sure.
type refAssignment struct {
	connection refConnection
	entry      uint32
}

func newRefTable(place plan.TablePlace) *refTable {
	return &refTable{place: place, entries: map[uint32]*refEntry{}, generations: map[uint32]uint8{}}
}

// layoutOf says what the bits of a service's cookies are.
func layoutOf(s *plan.Service) conntable.Layout {
	layout := conntable.Layout{IDBits: s.IDBits()}
	if s.Affinity == model.AffinityTable {
		layout.NodeBits, layout.IndexBits = s.Table.NodeBits, s.Table.IndexBits
	}
	return layout
}

func (w *world) tableHash(s *plan.Service, c refConnection) uint64 {
	key := cookie.ServiceKey(w.want.Keys.Placement, s.VIP, s.Protocol)
	return conntable.Hash(key.K0, key.K1, c.client, c.servicePort)
}

// partition returns the indices that a connection may have, but for 0, as numbers of entries.
func (t *refTable) partition(hash uint64) (first, end uint32) {
	bits := t.place.IndexBits
	base := conntable.Entry(conntable.PartitionOf(hash, conntable.Partitions(t.place.Blocks, bits)), 0, bits)
	return base, base + 1<<bits
}

// add gives a connection the lowest free index of its partition, or else the lowest of those that have ended.
func (t *refTable) add(hash uint64, fresh refEntry) (entry uint32, ok bool) {
	first, end := t.partition(hash)
	for _, ended := range []bool{false, true} {
		for entry := first + 1; entry < end; entry++ {
			if old := t.entries[entry]; old == nil && !ended || old != nil && ended && old.state >= ConnectionFinished {
				t.entries[entry] = &fresh
				t.generations[entry]++
				return entry, true
			}
		}
	}
	return 0, false
}

// byTable is what the table makes of a packet whose cookie is valid and says plain.
func (w *world) byTable(s *plan.Service, p *refPacket, plain uint16, echo uint32) refDecision {
	layout, connection := layoutOf(s), connectionOf(s, p)
	node, index, id := layout.Split(plain)
	d := refDecision{verdict: lbVerdictFORWARDED_BY_COOKIE, ids: []uint16{id}}
	t, hash := w.refTables[s.Name], w.tableHash(s, connection)
	base, _ := t.partition(hash)
	entry := t.entries[base+uint32(index)]
	if entry != nil && entry.connection == connection && node == w.want.Tier.ID {
		if entry.state == ConnectionNew {
			entry.state = ConnectionOpen
		}
		d.verdict = lbVerdictFORWARDED_BY_TABLE
	} else {
		var at uint32
		if at, d.verdict = w.assign(s, p, hash, id); d.verdict != lbVerdictFORWARDED_BY_TABLE && d.verdict != lbVerdictFORWARDED_ADDED {
			return d
		}
		entry = t.entries[at]
		told := echo ^ uint32(plain^layout.Join(w.want.Tier.ID, uint16(at-base), id))
		d.echo = &told
	}
	entry.count(p, s.Table.PacketLimit, &d)
	return w.byScrubber(s, entry, d)
}

// assign finds or makes an entry for a connection whose cookie names none of this node's.
func (w *world) assign(s *plan.Service, p *refPacket, hash uint64, id uint16) (at uint32, verdict lbVerdict) {
	connection, t := connectionOf(s, p), w.refTables[s.Name]
	place, _ := conntable.Assignment(hash, 0)
	if a := w.assigned[place]; a.connection == connection && t.entries[a.entry] != nil && t.entries[a.entry].connection == connection {
		return a.entry, lbVerdictFORWARDED_BY_TABLE
	} else if p.reset() || p.fin() || w.isBusy(a) {
		return 0, lbVerdictFORWARDED_BY_COOKIE
	}
	at, ok := t.add(hash, refEntry{connection: connection, id: id, state: ConnectionNew, suspect: w.isSuspect(s, p.source)})
	if !ok {
		return 0, lbVerdictFORWARDED_TABLE_FULL
	}
	w.assigned[place] = refAssignment{connection, at}
	return at, lbVerdictFORWARDED_ADDED
}

// isBusy reports whether an assignment is still needed. Tests pass within the second for which it keeps its place.
func (w *world) isBusy(a refAssignment) bool {
	t := w.refTables[a.connection.service]
	return t != nil && t.entries[a.entry] != nil && t.entries[a.entry].state == ConnectionNew
}

func (e *refEntry) count(p *refPacket, limit uint32, d *refDecision) {
	e.packets++
	e.bytes += uint64(p.length)
	if limit > 0 {
		if e.inWindow >= packetsOfWindow(limit) {
			d.verdict, d.ids, d.echo = lbVerdictDROPPED_OVER_LIMIT, nil, nil
		} else {
			e.inWindow++
		}
	}
	switch {
	case p.reset():
		e.state = ConnectionReset
	case p.fin():
		e.state = max(e.state, ConnectionFinished)
	}
}

// packetsOfWindow turns packets per second into those of 2^30 ns.
func packetsOfWindow(perSecond uint32) uint32 {
	return min(uint32((uint64(perSecond)<<30+999_999_999)/1_000_000_000), 65535)
}

// byScrubber sends a suspect's packets there first.
func (w *world) byScrubber(s *plan.Service, entry *refEntry, d refDecision) refDecision {
	scrubber := s.Server(s.Table.Scrubber)
	if !entry.suspect || scrubber == nil || len(d.ids) == 0 || scrubber.ID == d.ids[0] || serverIn(s, scrubber.ID) == nil {
		return d
	}
	d.verdict, d.ids, d.stops = lbVerdictFORWARDED_BY_SCRUBBER, []uint16{scrubber.ID}, d.ids
	return d
}

func (w *world) isSuspect(s *plan.Service, client netip.Addr) bool {
	for _, prefix := range w.suspects[s.Name] {
		if s.Table.Scrubber != "" && prefix.Contains(client) {
			return true
		}
	}
	return false
}

// asSteered is a service as this node steers it: one of the first tier takes the nodes of the second for its servers.
func (w *world) asSteered(s plan.Service) plan.Service {
	if !s.SendsToNodes(w.want.Tier.Tier) {
		return s
	}
	s.Dispatch, s.Forward, s.Fallback = model.DispatchMaglev, model.ForwardIPIP, model.FallbackHash
	s.Servers, s.Removed, s.Down = nil, nil, nil
	for _, node := range w.want.Tier.Second {
		server := model.Server{Name: node.Name, ID: node.ID, Address: node.Address, State: node.State, Weight: 1}
		if w.want.Tier.Down[node.ID] {
			server.State = model.StateOff
		}
		s.Servers = append(s.Servers, server)
	}
	return s
}

// nodeOf is the node of the second tier that a cookie names; 0 and why not, when there is none.
func (w *world) nodeOf(s *plan.Service, plain uint16) (id uint16, why lbVerdict) {
	node, _, _ := layoutOf(s).Split(plain)
	switch {
	case node == 0 && plain != 0:
		return 0, lbVerdictFORWARDED_NO_NODE
	case serverIn(s, node) == nil:
		return 0, lbVerdictFORWARDED_BAD_COOKIE
	}
	return node, lbVerdictFORWARDED_BY_COOKIE
}
