package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants
const (
	minEntries = model.DefaultEntries // of any table
	// Tables have so many entries for two flows that no partition overflows: every packet is measured on the same path.
	entriesOfTwo = 5
	fillBatch    = 65536 // flows
	// Maps have room for five flows where there are four.
	localOfFour = 5
)

// tableRig holds the load balancers with their tables.
type tableRig struct {
	runner
	lb    *lb.LB     // has all connection tables, and a service without
	plain plan.Place // of that
	fleet model.Fleet
	sizes []*tableSize
}

// tableSize is what is measured at one number of flows.
type tableSize struct {
	flows       uint32
	established *connTable // holds all flows
	indices     []uint8    // of the flows in it
	changing    *connTable // is prepared for each sample
	local       []*localTable
}

// connTable is a service with a connection table.
type connTable struct {
	*tableState
	vip    netip.Addr
	place  plan.Place
	blocks uint32
	idBits uint8      // of the cookie, right of the index
	key    cookie.Key // of its hash
}

// localTable is a load balancer with one service, by affinity local-table.
type localTable struct {
	*lb.LB
	place plan.Place
	name  string
	lru   bool
	full  bool
}

// cookieVIP is the service without a table; those with tables follow it.
var cookieVIP = netip.MustParseAddr("198.51.100.1")

func openTableRig(ctx context.Context, flows []uint32) (r *tableRig, err error) {
	r = &tableRig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	for _, n := range flows {
		r.sizes = append(r.sizes, &tableSize{flows: n, indices: make([]uint8, n)})
	}
	if r.verdicts, err = lb.VerdictNames(); err != nil {
		return r, err
	}
	if r.programs, err = wrapper.Open(); err != nil {
		return r, err
	}
	if err = r.openTables(); err != nil {
		return r, err
	}
	for _, size := range r.sizes {
		if err = size.openLocal(); err != nil {
			return r, err
		}
	}
	return r, r.fill(ctx)
}

func (r *tableRig) close() error {
	var errs []error
	for _, size := range r.sizes {
		for _, local := range size.local {
			errs = append(errs, local.Close())
		}
	}
	if r.lb != nil {
		errs = append(errs, r.lb.Close())
	}
	if r.programs != nil {
		errs = append(errs, r.programs.Close())
	}
	return errors.Join(errs...)
}

// tableLimits are enough for the services of a bench.
func tableLimits(services int) plan.Limits {
	n := uint32(services)
	return plan.Limits{Services: n, Servers: n*servers + 1, ServerIDs: 4 * n * servers, Slots: n * model.DefaultSlots,
		Rounds: n * 1024, Entries: conntable.BlockEntries, Local: 1}
}

// openTables makes the load balancer with two connection tables for each size: one that is in use, and one to change.
func (r *tableRig) openTables() (err error) {
	limits := tableLimits(1 + 2*len(r.sizes))
	limits.Entries = 0
	r.fleet = model.Fleet{Keys: keys(), Services: []model.Service{newService(cookieVIP, model.DispatchRR)}}
	vip := cookieVIP
	table := func(entries uint32) *connTable {
		vip = vip.Next()
		s := newService(vip, model.DispatchRR)
		s.Affinity, s.Table.Entries = model.AffinityTable, entries
		r.fleet.Services = append(r.fleet.Services, s)
		limits.Entries += conntable.Blocks(entries) * conntable.BlockEntries
		return &connTable{vip: vip, key: cookie.ServiceKey(r.fleet.Keys.Placement, vip, model.ProtocolTCP)}
	}
	for _, size := range r.sizes {
		entries := max(minEntries, size.flows/2*entriesOfTwo)
		size.established, size.changing = table(entries), table(entries)
	}
	r.fleet.ApplyDefaults()
	if r.lb, err = lb.OpenBench(limits, true); err != nil {
		return err
	}
	places, err := publish(r.lb, limits, &r.fleet, loopback)
	if err != nil {
		return err
	}
	r.plain = places[cookieVIP.String()]
	for _, size := range r.sizes {
		for _, t := range []*connTable{size.established, size.changing} {
			place := places[t.vip.String()]
			t.tableState, t.place, t.blocks = newTableState(r.lb, place.Table), place, place.Table.Blocks
			t.idBits = r.fleet.Service(t.vip.String()).IDBits()
		}
	}
	return nil
}

// openLocal makes the load balancers with tables by 5-tuple. The full ones are as large as the number of flows in them.
func (size *tableSize) openLocal() (err error) {
	fleet := model.Fleet{Keys: keys(), Services: []model.Service{newService(cookieVIP, model.DispatchRR)}}
	fleet.Services[0].Affinity, fleet.Services[0].Fallback = model.AffinityLocal, model.FallbackHash
	fleet.ApplyDefaults()
	for _, local := range []*localTable{{name: "hash"}, {name: "lru", lru: true}, {name: "hash", full: true}, {name: "lru", lru: true, full: true}} {
		limits := tableLimits(1)
		limits.Local = max(minEntries, size.flows/4*localOfFour)
		if local.full {
			limits.Local = max(MinChangedFlows, size.flows)
			if size.flows < MinChangedFlows {
				continue
			}
		}
		if local.LB, err = lb.OpenBench(limits, local.lru); err != nil {
			return err
		}
		size.local = append(size.local, local)
		places, err := publish(local.LB, limits, &fleet, loopback)
		if err != nil {
			return err
		}
		local.place = places[cookieVIP.String()]
	}
	return nil
}

// fill opens the connections of all flows everywhere.
func (r *tableRig) fill(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, size := range r.sizes {
		for first := uint32(0); first < size.flows; first += fillBatch {
			if err := ctx.Err(); err != nil {
				return err
			}
			batch := sequence(first, min(fillBatch, size.flows-first))
			if err := r.open(size, batch); err != nil {
				return fmt.Errorf("open connections in a table for %d: %w", size.flows, err)
			}
			for _, local := range size.local {
				if err := r.sendAll(local.segment("fill", segmentSYN, "forwarded_new"), batch); err != nil {
					return fmt.Errorf("open connections in %s for %d: %w", local.name, size.flows, err)
				}
			}
		}
	}
	return nil
}

// open gives entries to a batch of flows.
func (r *tableRig) open(size *tableSize, batch []uint32) error {
	s := r.established(size, "fill", segmentACK)
	before, err := s.counters()
	if err != nil {
		return err
	}
	run, err := r.programs.Open(s.program, &s.cell, batch, size.indices)
	if err != nil {
		return err
	}
	after, err := s.counters()
	if err != nil {
		return err
	}
	if run.Discarded > 0 {
		return errors.New("interrupted by a signal: start again")
	}
	for verdict, name := range r.verdicts {
		got, want := after[verdict].Packets-before[verdict].Packets, uint64(0)
		if name == "forwarded_added" || name == "forwarded_by_table" {
			want = uint64(len(batch))
		}
		if got != want {
			return fmt.Errorf("%d of %d packets were %s, want %d", got, run.Runs, name, want)
		}
	}
	return nil
}

// sendAll sends a segment of each flow of a batch, and checks what became of them.
func (r *tableRig) sendAll(s subject, batch []uint32) error {
	s.changes = &changes{}
	m := &measurement{subject: &s, flows: uint32(len(batch))}
	_, err := r.measure(m, batch, uint32(len(batch)))
	return err
}

func (r *tableRig) memory() (all []Memory, err error) {
	add := func(table string, flows uint32, of *lb.LB, which lb.BenchMaps) error {
		maps, err := of.BenchMemory(which)
		for _, m := range maps {
			all = append(all, Memory{table, flows, m})
		}
		return err
	}
	err = add("table", 0, r.lb, lb.BenchConnections)
	for _, size := range r.sizes {
		for _, local := range size.local {
			if !local.full {
				err = errors.Join(err, add("local-"+local.name, size.flows, local.LB, lb.BenchLocal))
			}
		}
	}
	return all, err
}
