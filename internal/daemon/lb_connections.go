package daemon

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	datapath "github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants of the sweep: all tables are gone through in conntable.SweepRound, or a fourth of the shortest idle timeout, unless
// that would take more than sweepShare of a CPU.
const (
	sweepPeriod = 50 * time.Millisecond
	sweepShare  = 50 // 1/50: 2 % of a CPU
	sweepChunk  = 16 // blocks between two looks at the clock
	flushPeriod = time.Second
)

// connectionTables is what a load balancer does about the tables of its services. LB.mu guards it, but for what says otherwise.
type connectionTables struct {
	log      *flowLog                                 // nil: none
	numbered atomic.Pointer[map[uint32]*serviceTable] // by service number, for who does not hold mu
	suspects suspects

	list    []*serviceTable // sorted by name
	listed  listed
	swept   time.Time // when the last part was
	flushed time.Time // when packets that wait were last counted
	service string    // that the sweep is at
	block   uint32    // and the first block that it has not seen
	part    connections.Tally
	counts  map[string]*sweepCounts // by service
}

// sweepCounts is what sweeps of a service's table have found.
type sweepCounts struct {
	place     plan.TablePlace
	tally     connections.Tally // of the last whole round
	rounds    uint64
	ended     [len(connections.EndReasons)]uint64
	reclaimed atomic.Uint64 // connections whose index others needed, as far as the data path tells: while there is a log
}

// serviceTable is a table that packets see.
type serviceTable struct {
	service string
	number  uint32
	table   connections.Table
	rules   connections.SweepRules
	servers map[uint16]string // names by id
	counts  *sweepCounts

	suspects *serviceSuspects // nil: there are none
}

// listed tells when the list of tables has to be made anew.
type listed struct {
	generation uint64
	tables     *plan.Tables
	services   *model.Service
	suspects   uint64
	at         time.Time
}

// tablesNow returns the tables that packets see. Callers hold mu, and use the list only until they let go of it.
func (lb *LB) tablesNow(now time.Time) []*serviceTable {
	c := &lb.connections
	is := listed{generation: lb.generation, tables: lb.tables, suspects: c.suspects.changes, at: now.Truncate(time.Second)}
	services := lb.node.Running.Services
	if len(services) > 0 {
		is.services = &services[0]
	}
	if is == c.listed {
		return c.list
	}
	c.listed, c.list = is, nil
	var places map[string]plan.Place
	numbered := map[uint32]*serviceTable{}
	for i := range services {
		s := &services[i]
		if s.Affinity != model.AffinityTable {
			continue
		}
		if places == nil {
			places = lb.tables.Places()
		}
		if place := places[s.Name]; place.Table.Blocks > 0 {
			t := lb.serviceTable(s, place)
			c.list = append(c.list, t)
			numbered[t.number] = t
		}
	}
	slices.SortFunc(c.list, func(a, b *serviceTable) int { return cmp.Compare(a.service, b.service) })
	c.numbered.Store(&numbered)
	maps.DeleteFunc(c.counts, func(name string, _ *sweepCounts) bool {
		return !slices.ContainsFunc(c.list, func(t *serviceTable) bool { return t.service == name })
	})
	return c.list
}

func (lb *LB) serviceTable(s *model.Service, place plan.Place) *serviceTable {
	t := &serviceTable{
		service: s.Name, number: place.Number, servers: map[uint16]string{}, counts: lb.connections.countsOf(s.Name, place.Table),
		table: connections.Table{TablePlace: place.Table, IPv6: s.VIP.Is6()},
		rules: connections.SweepRules{Limits: conntable.LimitsOf(time.Duration(s.Table.IdleTimeout))},
	}
	for _, servers := range [][]model.Server{lb.node.Lingering(s.Name), s.Servers} {
		for i := range servers {
			t.servers[servers[i].ID] = servers[i].Name
		}
	}
	if t.suspects = lb.connections.suspects.by[s.Name]; t.suspects != nil && s.Table.Scrubber != "" {
		t.rules.Suspect = t.suspects.contain
	}
	return t
}

// runConnections keeps the tables until ctx ends, and writes the log. reclaimed is of watchReclaimed.
func (lb *LB) runConnections(ctx context.Context, reclaimed *datapath.Reclaimed) {
	var telling, writing sync.WaitGroup
	if log := lb.connections.log; log != nil {
		writing.Go(func() { log.run() })
		if reclaimed != nil {
			telling.Go(func() { lb.followReclaimed(ctx, reclaimed) })
		}
		defer writing.Wait()
		defer log.close()
	}
	defer telling.Wait()
	lb.mu.Lock()
	lb.recoverConnections()
	lb.mu.Unlock()
	periodic.Every(ctx, sweepPeriod, func(now time.Time) {
		lb.mu.Lock()
		defer lb.mu.Unlock()
		if lb.waiting {
			return
		}
		lb.expireSuspects(now)
		lb.sweepPart(now)
	})
}

// recoverConnections gives back what an earlier daemon held when it was killed. Callers hold mu.
func (lb *LB) recoverConnections() {
	if !lb.path.Adopted() || lb.waiting {
		return
	}
	var tables []connections.Table
	for _, t := range lb.tablesNow(time.Now()) {
		tables = append(tables, t.table)
	}
	freed, err := lb.path.RecoverConnections(tables)
	if err != nil {
		lb.log.Error("entries of connections that an earlier daemon held are not freed", "error", err)
	} else if freed > 0 {
		lb.log.Info("freed entries of connections that an earlier daemon held", "entries", freed)
	}
}

// sweepPart goes on with the sweep. Callers hold mu.
func (lb *LB) sweepPart(now time.Time) {
	c := &lb.connections
	tables, elapsed := lb.tablesNow(now), min(now.Sub(c.swept), time.Second)
	c.swept = now
	if len(tables) == 0 || lb.applyIncomplete || elapsed <= 0 {
		return
	}
	if now.Sub(c.flushed) >= flushPeriod { // so that no record of what has ended lacks its last packets
		c.flushed = now
		lb.flushCounts()
	}
	end := time.Now().Add(elapsed / sweepShare)
	for left := partOf(tables, elapsed); left > 0 && time.Now().Before(end); {
		part := min(left, sweepChunk)
		left -= part
		c.sweepNext(tables, part, lb.sweepBlocks)
	}
}

// flushCounts counts the packets that wait for it.
func (lb *LB) flushCounts() {
	if err := lb.path.FlushCounts(); err != nil {
		lb.log.Error("connections are shown without their last packets", "error", err)
	}
}

// partOf is how many blocks have to be swept in a time, so that a round takes as long as it shall.
func partOf(tables []*serviceTable, elapsed time.Duration) uint32 {
	blocks, round := uint64(0), conntable.SweepRound
	for _, t := range tables {
		blocks += uint64(t.table.Blocks)
		round = min(round, t.rules.Idle/4)
	}
	return uint32(min(blocks, blocks*uint64(elapsed)/uint64(max(round, sweepPeriod))+1))
}

// sweepNext sweeps the next so many blocks, or those up to the end of a table. A table that is another one than when its last part was
// swept is begun anew.
func (c *connectionTables) sweepNext(tables []*serviceTable, blocks uint32, sweep func(t *serviceTable, from, blocks uint32) connections.Tally) {
	at, found := slices.BinarySearchFunc(tables, c.service, func(t *serviceTable, name string) int { return cmp.Compare(t.service, name) })
	t := tables[at%len(tables)]
	if moved := t.counts.place != t.table.TablePlace; moved || !found {
		if moved {
			t.counts.place, t.counts.tally = t.table.TablePlace, connections.Tally{}
		}
		c.service, c.block, c.part = t.service, 0, connections.Tally{}
	}
	c.part.Add(sweep(t, c.block, blocks))
	if c.block += blocks; c.block >= t.table.Blocks {
		t.counts.tally = c.part
		t.counts.rounds++
		c.service, c.block, c.part = tables[(at+1)%len(tables)].service, 0, connections.Tally{}
	}
}

// sweepBlocks sweeps a part of a table, and tells who it took entries from. Callers hold mu.
func (lb *LB) sweepBlocks(t *serviceTable, from, blocks uint32) connections.Tally {
	return lb.path.Connections().Sweep(t.table, from, blocks, &t.rules, func(ended *connections.Connection, reason connections.EndReason) {
		t.counts.ended[reason]++
		lb.connections.log.tell(t, ended, reason, false)
	})
}

func (c *connectionTables) countsOf(service string, place plan.TablePlace) *sweepCounts {
	counts := c.counts[service]
	if counts == nil {
		if c.counts == nil {
			c.counts = map[string]*sweepCounts{}
		}
		counts = &sweepCounts{place: place}
		c.counts[service] = counts
	}
	return counts
}

// watchReclaimed lets the data path tell of connections that it takes the index from; nil: it does not.
func (lb *LB) watchReclaimed() *datapath.Reclaimed {
	if lb.connections.log == nil {
		return nil
	}
	watch, err := lb.path.WatchReclaimed()
	if err != nil {
		lb.log.Error("the flow log will lack connections whose entries others needed", "error", err)
	}
	return watch
}

// followReclaimed logs the connections that the data path itself took the index from.
func (lb *LB) followReclaimed(ctx context.Context, watch *datapath.Reclaimed) {
	c := &lb.connections
	stop := context.AfterFunc(ctx, func() { watch.Close() })
	defer stop()
	var t *serviceTable // of the connection that is being read
	ipv6 := func(service uint32) bool {
		if numbered := c.numbered.Load(); numbered != nil {
			t = (*numbered)[service]
		}
		return t != nil && t.table.IPv6
	}
	for {
		var ended connections.Connection
		t = nil
		_, reason, err := watch.Next(ipv6, &ended)
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			lb.log.Error("an ended connection is not logged", "error", err)
		case t == nil: // its service is gone
			c.log.dropped[dropGone].Add(1)
		default:
			t.counts.reclaimed.Add(1)
			c.log.tell(t, &ended, reason, true)
		}
	}
}
