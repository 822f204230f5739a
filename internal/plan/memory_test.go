package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/history"
)

// memory is the tables as the kernel has them, with their past: a packet reads one thing after the other while changes go on.
type memory struct {
	step        int // changes carried out
	vips        past[VIPKey, uint32]
	returns     past[ReturnKey, uint64]
	serviceRows past[uint32, uint32]
	services    past[uint32, ServiceRow]
	serverRows  past[uint32, uint32]
	servers     past[uint32, ServerRow]
	slots       past[uint32, history.Column]
	rounds      past[uint32, uint64]
	blocks      past[uint32, block]
	configs     past[uint32, QUICConfigs]
	sessions    past[uint32, SessionConfig]
	replicas    past[uint32, ReplicaConfig]
	replicaRow  uint32
	allowed     past[AllowedKey, bool]
	cleared     map[uint32]int // counter index -> how often
}

// block is a block of connections: how often it was made empty, the last time for partitions of what size.
type block struct {
	cleared   int
	indexBits uint8
}

// past is a table with all its earlier contents.
type past[K comparable, V any] map[K][]version[V]

type version[V any] struct {
	step    int
	value   V
	present bool
}

func newMemory() *memory {
	return &memory{vips: past[VIPKey, uint32]{}, returns: past[ReturnKey, uint64]{}, serviceRows: past[uint32, uint32]{},
		services: past[uint32, ServiceRow]{}, serverRows: past[uint32, uint32]{}, servers: past[uint32, ServerRow]{},
		slots: past[uint32, history.Column]{}, rounds: past[uint32, uint64]{}, blocks: past[uint32, block]{}, configs: past[uint32, QUICConfigs]{}, sessions: past[uint32, SessionConfig]{}, replicas: past[uint32, ReplicaConfig]{},
		allowed: past[AllowedKey, bool]{}, cleared: map[uint32]int{}}
}

func (p past[K, V]) set(step int, key K, value V) {
	p[key] = append(p[key], version[V]{step, value, true})
}

func (p past[K, V]) remove(step int, key K) {
	var none V
	p[key] = append(p[key], version[V]{step, none, false})
}

// at is what a packet that reads after so many changes finds.
func (p past[K, V]) at(step int, key K) (value V, ok bool) {
	for _, v := range slices.Backward(p[key]) {
		if v.step <= step {
			return v.value, v.present
		}
	}
	return value, false
}

func (p past[K, V]) now() map[K]V {
	all := map[K]V{}
	for key, versions := range p {
		if last := versions[len(versions)-1]; last.present {
			all[key] = last.value
		}
	}
	return all
}

// apply carries out one change.
func (m *memory) apply(change Change) {
	m.step++
	switch c := change.(type) {
	case WriteServer:
		m.servers.set(m.step, c.Row, c.Value)
	case WriteService:
		m.services.set(m.step, c.Row, c.Value)
	case WriteSlots:
		for i, slot := range c.Slots {
			m.slots.set(m.step, c.Base+uint32(i), slot)
		}
	case WriteRounds:
		for i, word := range c.Words {
			m.rounds.set(m.step, c.Base+uint32(i), word)
		}
	case WriteQUIC:
		m.configs.set(m.step, c.Group, *c.Configs)
	case WriteSession:
		m.sessions.set(m.step, c.Group, *c.Config)
	case WriteAllowed:
		for key := range m.allowed.now() {
			if list, _ := key.Allowed(); list == c.List {
				panic("a list is written that is not empty")
			}
		}
		for _, prefix := range c.Prefixes {
			m.allowed.set(m.step, AllowedAt(c.List, prefix), true)
		}
	case DeleteAllowed:
		for _, prefix := range c.Prefixes {
			m.allowed.remove(m.step, AllowedAt(c.List, prefix))
		}
	case WriteReplicas:
		if c.Row == m.replicaRow {
			panic("a config is written that packets read")
		}
		m.replicas.set(m.step, c.Row, *c.Value)
	case PointReplicas:
		m.replicaRow = c.Row
	case SetTurn:
		m.rounds.set(m.step, c.Index, c.Word)
	case PointID:
		m.serverRows.set(m.step, c.Index, c.Row)
	case PointService:
		m.serviceRows.set(m.step, c.Number, c.Row)
	case SetVIP:
		m.vips.set(m.step, c.Key, c.Number)
	case DeleteVIP:
		m.vips.remove(m.step, c.Key)
	case SetReturn:
		m.returns.set(m.step, c.Key, c.Value)
	case DeleteReturn:
		m.returns.remove(m.step, c.Key)
	case ClearTable:
		for i := range c.Blocks {
			before, _ := m.blocks.at(m.step, c.Base+i)
			m.blocks.set(m.step, c.Base+i, block{before.cleared + 1, c.IndexBits})
		}
	case ClearCounter:
		m.cleared[c.Index]++
	case CountOpen, RetireCounter, ClearService, Grace:
	default:
		panic(fmt.Sprintf("unknown change %T", change))
	}
}

// The methods below make memory a Reader of what is there now.

func (m *memory) VIPs() (map[VIPKey]uint32, error)       { return m.vips.now(), nil }
func (m *memory) Returns() (map[ReturnKey]uint64, error) { return m.returns.now(), nil }

func (m *memory) Replicas() (uint32, *ReplicaConfig) {
	config, _ := m.replicas.at(m.step, m.replicaRow)
	return m.replicaRow, &config
}

func (m *memory) ServiceRow(number uint32) uint32 {
	row, _ := m.serviceRows.at(m.step, number)
	return row
}

func (m *memory) Service(row uint32) ServiceRow {
	value, _ := m.services.at(m.step, row)
	return value
}

func (m *memory) ServerRow(index uint32) uint32 {
	row, _ := m.serverRows.at(m.step, index)
	return row
}

func (m *memory) Server(row uint32) ServerRow {
	value, _ := m.servers.at(m.step, row)
	return value
}

func (m *memory) Slots(base, count uint32) []history.Column {
	return rangeAt(m.slots, m.step, base, count)
}

func (m *memory) Rounds(base, count uint32) []uint64 { return rangeAt(m.rounds, m.step, base, count) }

func rangeAt[V any](p past[uint32, V], step int, base, count uint32) []V {
	values := make([]V, count)
	for i := range values {
		values[i], _ = p.at(step, base+uint32(i))
	}
	return values
}

// forget drops the past, which nobody who began after a grace period can see.
func (m *memory) forget() {
	forget(m.vips)
	forget(m.returns)
	forget(m.serviceRows)
	forget(m.services)
	forget(m.serverRows)
	forget(m.servers)
	forget(m.slots)
	forget(m.rounds)
	forget(m.blocks)
	forget(m.allowed)
}

func (m *memory) Allowed() (map[uint32][]netip.Prefix, error) {
	return m.allowedAt(m.step), nil
}

// allowedAt are the lists as a packet finds them that reads after so many changes.
func (m *memory) allowedAt(step int) map[uint32][]netip.Prefix {
	lists := map[uint32][]netip.Prefix{}
	for key := range m.allowed {
		if _, there := m.allowed.at(step, key); there {
			list, prefix := key.Allowed()
			lists[list] = append(lists[list], prefix)
		}
	}
	return lists
}

func forget[K comparable, V any](p past[K, V]) {
	for key := range maps.Clone(p) {
		p[key] = p[key][len(p[key])-1:]
	}
}

func (m *memory) Session(group uint32) (*SessionConfig, error) {
	config, _ := m.sessions.at(m.step, group)
	return &config, nil
}

func (m *memory) QUIC(group uint32) (*QUICConfigs, error) {
	configs, _ := m.configs.at(m.step, group)
	return &configs, nil
}
