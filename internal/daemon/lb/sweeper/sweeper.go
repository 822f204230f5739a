// Package sweeper keeps the connection tables of a load balancer's services: it frees entries of connections that have ended, answers who
// asks for connections, and knows who is suspect.
package sweeper

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/flowlog"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Options of New.
type Options struct {
	Tables *dataplane.Tables
	Flows  *flowlog.Log // nil: none
	Save   func()       // saves Suspects; called without a lock
	Log    *slog.Logger
}

// Sweeper keeps the tables of one load balancer. All methods are safe for concurrent use. Its lock comes before those of dataplane.
type Sweeper struct {
	Options
	path     *lb.LB
	numbered atomic.Pointer[map[uint32]*table] // by service number, for who has no lock

	mutex    sync.Mutex // guards what follows
	suspects suspects
	sweep    sweep
	tables   []*table // sorted by name; replaced, never changed
	listed   listed
	counts   map[string]*counts // by service
}

// listed is what the list of tables was made of.
type listed struct {
	now      *dataplane.Snapshot
	suspects uint64
}

// table is one that packets see.
type table struct {
	connections.Table
	service string
	number  uint32
	rules   connections.SweepRules
	servers map[uint16]string // names by id
	counts  *counts

	suspects *serviceSuspects // nil: there are none
}

// counts is what sweeps of a service's table have found.
type counts struct {
	place     plan.TablePlace
	tally     connections.Tally // of the last whole round
	rounds    uint64
	ended     [len(connections.EndReasons)]uint64
	reclaimed atomic.Uint64 // connections whose index others needed, as far as the data path tells: while there is a log
}

// New returns a sweeper that does nothing yet.
func New(o Options) *Sweeper {
	return &Sweeper{Options: o, path: o.Tables.Path(), counts: map[string]*counts{}}
}

// held is the sweeper's tables while they stay where they are and nobody else has them.
type held struct {
	*Sweeper
	now *dataplane.Snapshot
}

func (k *Sweeper) hold(do func(h held)) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.Tables.Hold(func(now *dataplane.Snapshot) {
		h := held{k, now}
		h.list()
		do(h)
	})
}

// list makes the list of tables anew when they, or who is suspect, may have changed.
func (h held) list() {
	is := listed{h.now, h.suspects.changes}
	if is == h.listed {
		return
	}
	h.listed, h.tables = is, nil
	numbered := map[uint32]*table{}
	for i := range h.now.Running.Services {
		s := &h.now.Running.Services[i]
		if place := h.now.Places[s.Name]; s.Affinity == model.AffinityTable && place.Table.Blocks > 0 {
			t := h.table(s, place)
			h.tables = append(h.tables, t)
			numbered[t.number] = t
		}
	}
	slices.SortFunc(h.tables, func(a, b *table) int { return cmp.Compare(a.service, b.service) })
	h.numbered.Store(&numbered)
	maps.DeleteFunc(h.counts, func(name string, _ *counts) bool {
		return !slices.ContainsFunc(h.tables, func(t *table) bool { return t.service == name })
	})
}

func (h held) table(s *model.Service, place plan.Place) *table {
	t := &table{
		service: s.Name, number: place.Number, servers: map[uint16]string{}, counts: h.countsOf(s.Name, place.Table),
		Table: connections.Table{TablePlace: place.Table, IPv6: s.HasIPv6()},
		rules: connections.SweepRules{Limits: conntable.LimitsOf(time.Duration(s.Table.IdleTimeout))},
	}
	for _, servers := range [][]model.Server{h.now.Lingering(s.Name), s.Servers} {
		for i := range servers {
			t.servers[servers[i].ID] = servers[i].Name
		}
	}
	if t.suspects = h.suspects.by[s.Name]; t.suspects != nil && s.Table.Scrubber != "" {
		t.rules.Suspect = t.suspects.contain
	}
	return t
}

func (k *Sweeper) countsOf(service string, place plan.TablePlace) *counts {
	if k.counts[service] == nil {
		k.counts[service] = &counts{place: place}
	}
	return k.counts[service]
}

// Run keeps the tables until ctx ends, and writes the log. reclaimed is of Watch.
func (k *Sweeper) Run(ctx context.Context, reclaimed *lb.Reclaimed) {
	var telling, writing sync.WaitGroup
	if k.Flows != nil {
		writing.Go(k.Flows.Run)
		if reclaimed != nil {
			telling.Go(func() { k.follow(ctx, reclaimed) })
		}
		defer writing.Wait()
		defer k.Flows.Close()
	}
	defer telling.Wait()
	k.Recover()
	periodic.Every(ctx, sweepPeriod, func(now time.Time) {
		changed := false
		k.hold(func(h held) {
			if h.now.Followed {
				changed = h.expire(now)
				h.sweepPart(now)
			}
		})
		if changed {
			k.Save()
		}
	})
}

// Recover gives back what an earlier daemon held when it was killed.
func (k *Sweeper) Recover() {
	k.hold(func(h held) {
		if !k.path.Adopted() || !h.now.Followed {
			return
		}
		var tables []connections.Table
		for _, t := range h.tables {
			tables = append(tables, t.Table)
		}
		freed, err := k.path.RecoverConnections(tables)
		if err != nil {
			k.Log.Error("entries of connections that an earlier daemon held are not freed", "error", err)
		} else if freed > 0 {
			k.Log.Info("freed entries of connections that an earlier daemon held", "entries", freed)
		}
	})
}

// flushCounts counts the packets that wait for it.
func (k *Sweeper) flushCounts() {
	if err := k.path.FlushCounts(); err != nil {
		k.Log.Error("connections are shown without their last packets", "error", err)
	}
}

// Watch lets the data path tell of connections that it takes the index from; nil: it does not.
func (k *Sweeper) Watch() *lb.Reclaimed {
	if k.Flows == nil {
		return nil
	}
	watch, err := k.path.WatchReclaimed()
	if err != nil {
		k.Log.Error("the flow log will lack connections whose entries others needed", "error", err)
	}
	return watch
}

// follow logs the connections that the data path itself took the index from.
func (k *Sweeper) follow(ctx context.Context, watch *lb.Reclaimed) {
	stop := context.AfterFunc(ctx, func() { watch.Close() })
	defer stop()
	var t *table // of the connection that is being read
	ipv6 := func(service uint32) bool {
		if numbered := k.numbered.Load(); numbered != nil {
			t = (*numbered)[service]
		}
		return t != nil && t.IPv6
	}
	for {
		var ended connections.Connection
		t = nil
		_, reason, err := watch.Next(ipv6, &ended)
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			k.Log.Error("an ended connection is not logged", "error", err)
		case t == nil: // its service is gone
			k.Flows.Gone()
		default:
			t.counts.reclaimed.Add(1)
			k.Flows.Add(t.service, t.servers[ended.Server], &ended, reason, true)
		}
	}
}
