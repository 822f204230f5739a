package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/history"
)

// Reader reads tables as packets see them.
type Reader interface {
	VIPs() (map[VIPKey]uint32, error)
	Returns() (map[ReturnKey]uint64, error)
	ServiceRow(number uint32) uint32
	Service(row uint32) ServiceRow
	ServerRow(index uint32) uint32
	Server(row uint32) ServerRow
	Slots(base, count uint32) []history.Column
	Rounds(base, count uint32) []uint64
	QUIC(group uint32) (*QUICConfigs, error)
	Session(group uint32) (*SessionConfig, error)
	Replicas() (row uint32, config *ReplicaConfig)
	Allowed() (map[uint32][]netip.Prefix, error) // by list
}

// Restore finds out what is published, so that a new process goes on where an earlier one ended: counters keep
// their places and slots their history. Unpublished leftovers of an interrupted update count as free.
func Restore(l Limits, r Reader) (*Tables, error) {
	t := NewTables(l)
	vips, err := r.VIPs()
	if err != nil {
		return nil, fmt.Errorf("read published destinations: %w", err)
	}
	returns, err := r.Returns()
	if err != nil {
		return nil, fmt.Errorf("read published returns: %w", err)
	}
	if t.unlisted, err = r.Allowed(); err != nil {
		return nil, fmt.Errorf("read published prefixes of clients: %w", err)
	}
	t.restoreReplicas(r)
	byNumber := map[uint32]*published{}
	for _, key := range sortedKeys(vips, vipOrder) {
		number, join := vips[key]&(1<<joinShift-1), uint16(vips[key]>>joinShift)
		if number == 0 {
			if key == key.former() {
				t.former[key] = 0
			} else if vips[key] == VIPRejects {
				t.rejecting[key] = VIPRejects
			}
			continue
		}
		service := r.Service(r.ServiceRow(number)).Number // that of its main VIP
		p := byNumber[service]
		if p == nil {
			if p, err = t.restoreService(r, service); err != nil {
				return nil, err
			}
			byNumber[service] = p
			t.services = append(t.services, p)
		}
		if err := t.restoreVIP(r, p, key.VIP(), number); err != nil {
			return nil, err
		}
		if join == 0 {
			p.image.vips = append(p.image.vips, key)
			continue
		}
		if p.image.joins == nil {
			p.image.joins = map[VIPKey]uint16{}
		}
		p.image.joins[key] = join
	}
	for key, value := range returns {
		if p := byNumber[uint32(value>>32)]; p != nil {
			p.image.returns[key] = returning{id: uint16(value)}
			continue
		}
		if t.orphans == nil {
			t.orphans = map[ReturnKey]uint64{}
		}
		t.orphans[key] = value
	}
	if len(t.unlisted) == 0 {
		t.unlisted = nil
	}
	return t, nil
}

// restoreVIP finds out by what packets to an address of a service go.
func (t *Tables) restoreVIP(r Reader, p *published, vip netip.Addr, number uint32) error {
	if _, known := p.others[vip]; number == p.number || known {
		return nil
	}
	other := doorway{number, r.ServiceRow(number)}
	if !t.numbers.reserve(span{number, 1}) || !t.serviceRows.reserve(span{other.row, 1}) {
		return fmt.Errorf("restore service %d: its address %s shares its row with another: detach and start afresh", p.number, vip)
	}
	if p.others == nil {
		p.others, p.image.others = map[netip.Addr]doorway{}, map[netip.Addr]ServiceRow{}
	}
	p.others[vip], p.image.others[vip] = other, r.Service(other.row).unplaced(number)
	return nil
}

// unplaced is a row without where everything lies. One that does not know its number, as those of earlier versions, is like no other, so that it
// is written anew.
func (row ServiceRow) unplaced(number uint32) ServiceRow {
	row.VIPNumber ^= number
	row.Number, row.Row, row.IDsBase, row.IDsCount, row.SlotsBase, row.SlotsCount, row.RoundsBase, row.RoundsCount = 0, 0, 0, 0, 0, 0, 0, 0
	row.TableBase, row.QUICBase, row.Session, row.Allow, row.PredecessorsBase = 0, 0, 0, 0, 0
	return row
}

func (t *Tables) restoreService(r Reader, number uint32) (*published, error) {
	p := &published{number: number, row: r.ServiceRow(number), serverRow: map[uint16]uint32{}, counters: map[uint16]uint32{}}
	row := r.Service(p.row)
	p.ids, p.slots, p.rounds = span{row.IDsBase, row.IDsCount}, span{row.SlotsBase, row.SlotsCount * uint32(row.Columns)}, span{row.RoundsBase, row.RoundsCount}
	p.connections = span{row.TableBase, row.TableBlocks}
	if group := max(row.QUICBase/uint32(len(QUICConfigs{})), row.Session); group != 0 {
		p.configs = span{group, 1}
	}
	if row.Allow != 0 {
		p.allowed = span{row.Allow, 1}
	}
	ok := p.row != 0 && row.Number == number && t.numbers.reserve(span{number, 1}) && t.serviceRows.reserve(span{p.row, 1}) &&
		t.ids.reserve(p.ids) && t.slots.reserve(p.slots) && t.rounds.reserve(p.rounds) && t.blocks.reserve(p.connections) &&
		t.configs.reserve(p.configs) && t.lists.reserve(p.allowed) && t.restorePredecessors(r, p, row)
	if !ok {
		return nil, fmt.Errorf("restore service %d: its tables contradict each other: detach and start afresh", number)
	}
	session := row.Session
	p.image = image{row: row.unplaced(number), main: AddressOf(row.VIP), servers: map[uint16]ServerRow{}, returns: map[ReturnKey]returning{},
		rounds: withoutCounters(r.Rounds(p.rounds.base, p.rounds.count), row.Classes)}
	p.image.allow = sorted(t.unlisted[p.allowed.base])
	delete(t.unlisted, p.allowed.base)
	if !p.image.consistent() {
		return nil, fmt.Errorf("restore service %d: its classes contradict each other: detach and start afresh", number)
	}
	if session != 0 {
		config, err := r.Session(session)
		if err != nil {
			return nil, fmt.Errorf("read how connections of service %d begin: %w", number, err)
		}
		p.image.session = config
	} else if p.configs.count > 0 {
		configs, err := r.QUIC(p.configs.base)
		if err != nil {
			return nil, fmt.Errorf("read how service %d reads connection ids: %w", number, err)
		}
		p.image.configs = configs
	}
	p.image.slots = slices.Clone(r.Slots(p.slots.base, p.slots.count))
	for id := range p.ids.count {
		at := r.ServerRow(p.ids.base + id)
		if at == 0 {
			continue
		}
		server := r.Server(at)
		if !t.serverRows.reserve(span{at, 1}) || !t.counters.reserve(span{server.Counter, 1}) {
			return nil, fmt.Errorf("restore service %d: server %d shares its row with another: detach and start afresh", number, id)
		}
		p.serverRow[uint16(id)], p.counters[uint16(id)] = at, server.Counter
		server.Counter = 0
		p.image.servers[uint16(id)] = server
	}
	return p, nil
}
