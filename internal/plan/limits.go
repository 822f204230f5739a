package plan

import (
	"cmp"

	"github.com/ballast-lb/ballast/internal/model"
)

// Limits are how many entries the maps have room for: their memory is taken at once. 0: nobody has said it.
type Limits struct {
	Services  uint32 // services
	Servers   uint32 // (service, server) pairs, removed ones that still have connections included
	ServerIDs uint32
	Slots     uint32
	Rounds    uint32
	Entries   uint32 // of connection tables, 32 bytes each, and 16 for IPv6; a multiple of 64
	Local     uint32 // connections that services with affinity local-table remember

	// Replicated is how many entries there is room for of replicated connections, and how many other answers: see replicas.Buckets.
	Replicated uint32
}

// DefaultLimits hold a few hundred services of the default table size, a million entries, and a quarter of a million replicated ones, in about 155 MB.
var DefaultLimits = Limits{Services: 4096, Servers: 16384, ServerIDs: 1 << 20, Slots: 1 << 22, Rounds: 1 << 20,
	Entries: 1 << 20, Local: 1 << 16, Replicated: 1 << 18}

// What LimitsFor gives at the least: a hundred services of the default table size more, two connection tables of the default size, and none that are
// replicated to speak of. 80 MB less than DefaultLimits.
const (
	leastSlots      = 1 << 20
	leastEntries    = 1 << 17
	leastReplicated = 1 << 14
)

// LimitsFor are limits that services fit into, with room for as many more. A table's entries are as many as DefaultLimits has, or the operator says.
func LimitsFor(services []model.Service) Limits {
	l := DefaultLimits
	l.Entries, l.Replicated = leastEntries, leastReplicated
	var servers, slots uint64
	for i := range services {
		s := &services[i]
		servers += uint64(len(s.Servers))
		slots += uint64(s.TableSlots) * uint64(shapeOf(s).Columns)
		if s.Affinity == model.AffinityTable {
			l.Entries = DefaultLimits.Entries
		}
		if s.Affinity == model.AffinityReplicated || s.Fallback == model.FallbackReplicated {
			l.Replicated = DefaultLimits.Replicated
		}
	}
	l.Servers = max(l.Servers, uint32(min(2*servers+1, 1<<24)))
	l.Slots = uint32(min(max(leastSlots, 2*2*slots), 1<<28)) // changes take twice what is used
	return l
}

// Or takes what is 0 from other limits.
func (l Limits) Or(others Limits) Limits {
	return Limits{
		Services: cmp.Or(l.Services, others.Services), Servers: cmp.Or(l.Servers, others.Servers), ServerIDs: cmp.Or(l.ServerIDs, others.ServerIDs),
		Slots: cmp.Or(l.Slots, others.Slots), Rounds: cmp.Or(l.Rounds, others.Rounds), Entries: cmp.Or(l.Entries, others.Entries),
		Local: cmp.Or(l.Local, others.Local), Replicated: cmp.Or(l.Replicated, others.Replicated),
	}
}

// Destinations and Returns are the sizes of the two maps that are no arrays: old and new entries stand side by side, too.
func (l Limits) Destinations() uint32 { return 2 * l.Services * (model.MaxPorts + 1) }

// Returns: see Destinations.
func (l Limits) Returns() uint32 { return 2 * l.Servers }

// Rows returns how many rows the immutable tables need: old and new stand side by side.
func (l Limits) Rows() (services, servers uint32) { return 2*(l.Services+1) + 1, 2*l.Servers + 1 }
