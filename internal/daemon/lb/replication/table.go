// Package replication keeps the replicated entries of a load balancer: views, syncs and expiry by internal/machine/replica, on the tables that packets
// use, and what other load balancers and controllers have to do with it.
package replication

import (
	"math"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// table is a table of the data path as the machine takes it.
type table struct {
	*replicas.Table
	period  func() uint32        // that packets note now
	gone    func(replicas.Entry) // is called with each entry that is removed, if it is given
	failed  func(error)          // is called where the kernel refuses what it never should
	walking map[ring.Key]*walk   // by the end of their range: those that have not come to it
	old     *oldKeys             // nil: nobody has asked for them
}

// oldKeys are those that there were when they were first asked for in a view, in order: to look through the whole table for each part of a sync would take
// the square of its size.
type oldKeys struct {
	view uint32
	keys []uint64
}

// walk is a range that is walked in several calls.
type walk struct {
	next ring.Key // where it was ended
	keys []uint64 // from there on, as they were at its beginning; what has become of them is looked up
}

func newTable(t *replicas.Table, period func() uint32, gone func(replicas.Entry), failed func(error)) *table {
	return &table{Table: t, period: period, gone: gone, failed: failed, walking: map[ring.Key]*walk{}}
}

// record is an entry with its period as the machine counts them: that it is not of the future is known.
func (t *table) record(e replicas.Entry) replica.Record {
	now := t.period()
	return replica.Record{Key: ring.Key(e.Key), Owner: replica.Owner(e.Owner), Period: now - (now-e.Period)&replicas.PeriodMask, Cacheable: e.Flags&replicas.Cacheable != 0}
}

// over is what an entry becomes: what the machine knows nothing of stays.
func over(r replica.Record, before replicas.Entry) replicas.Entry {
	e := replicas.Entry{Key: uint64(r.Key), Owner: uint16(r.Owner), Service: before.Service, Period: r.Period & replicas.PeriodMask, Flags: before.Flags &^ replicas.Cacheable}
	if r.Cacheable {
		e.Flags |= replicas.Cacheable
	}
	return e
}

// Find is as replica.Table says.
func (t *table) Find(key ring.Key) (replica.Record, bool) {
	e, ok := t.Table.Find(uint64(key))
	if !ok {
		return replica.Record{}, false
	}
	return t.record(e), true
}

// Insert is as replica.Table says.
func (t *table) Insert(r replica.Record) (replica.Record, bool) {
	there, ok, err := t.Table.Insert(over(r, replicas.Entry{}))
	if err != nil {
		t.failed(err)
	}
	if !ok {
		return replica.Record{}, false
	}
	return t.record(there), true
}

// InsertAll is as replica.Table says.
func (t *table) InsertAll(records []replica.Record) {
	entries := make([]replicas.Entry, len(records))
	for i, r := range records {
		entries[i] = over(r, replicas.Entry{})
	}
	if err := t.Table.Put(entries); err != nil {
		t.failed(err)
	}
	for i, e := range entries {
		if records[i].Owner = 0; e.Owner != 0 {
			records[i] = t.record(e)
		}
	}
}

// Swap is as replica.Table says.
func (t *table) Swap(before, after replica.Record) bool {
	e, ok := t.Table.Find(uint64(before.Key))
	return ok && t.record(e) == before && t.Table.Swap(e, over(after, e))
}

// Keep is as replica.Table says.
func (t *table) Keep(stays func(replica.Record) bool) {
	_, err := t.Table.Keep(func(e replicas.Entry) bool { return stays(t.record(e)) }, t.gone)
	if err != nil {
		t.failed(err)
	}
}

// Each is as replica.Table says.
func (t *table) Each(low, high ring.Key, do func(replica.Record) bool) {
	w := t.walking[high]
	if w == nil || w.next != low {
		w = &walk{keys: t.Table.Keys(uint64(low), uint64(high))}
	}
	delete(t.walking, high)
	for i, key := range w.keys {
		if r, ok := t.Find(ring.Key(key)); ok && !do(r) {
			t.walking[high] = &walk{ring.Key(key), w.keys[i:]}
			return
		}
	}
}

// EachOf is as replica.Table says.
func (t *table) EachOf(view uint32, low, high ring.Key, do func(replica.Record) bool) {
	if t.old == nil || t.old.view != view {
		t.old = &oldKeys{view, t.Table.Keys(0, math.MaxUint64)}
	}
	keys := t.old.keys
	first, _ := slices.BinarySearch(keys, uint64(low))
	for i := range keys {
		key := ring.Key(keys[(first+i)%len(keys)])
		if key-low > high-low {
			return
		}
		if r, ok := t.Find(key); ok && !do(r) {
			return
		}
	}
}

// Len is as replica.Table says.
func (t *table) Len() int { return t.Table.Count() }

var _ replica.Table = (*table)(nil)
