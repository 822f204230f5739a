// Package replicas reads and changes the entries of replicated connections (bpf/lb/state/replicas.h), in memory that packets change too.
package replicas

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// Entry is what a table has of a connection: struct replica_entry.
type Entry struct {
	Key     uint64 // 2 and above
	Owner   uint16 // id of a server; not 0
	Service uint16 // number of its service here; 0: no packet of it has come here
	Period  uint32 // in which it was used last: 24 bits
	Flags   uint8
}

// Flags of Entry: enum replica_flag.
const (
	Cacheable  = 1
	Dispatched = 2 // this node has dispatched the connection
)

// PeriodMask is of the bits of a period that entries have.
const PeriodMask = 1<<24 - 1

// Word is the entry as its word has it.
func (e Entry) Word() uint64 {
	return uint64(e.Owner) | uint64(e.Service)<<16 | uint64(e.Period&PeriodMask)<<32 | uint64(e.Flags)<<56
}

// Read is the entry of a key whose word is not 0.
func Read(key, word uint64) Entry {
	return Entry{key, uint16(word), uint16(word >> 16), uint32(word>>32) & PeriodMask, uint8(word >> 56)}
}

// Implementation constants: those of bpf/lb/state/replicas.h.
const (
	slots      = 7
	removedKey = 1
	change     = 1 << 8
)

// Bucket is struct replica_bucket.
type Bucket struct {
	Head uint64
	_    uint64
	Slot [slots]struct{ Key, Word uint64 }
}

// BucketBytes is how much memory a bucket takes.
const BucketBytes = 128

// Buckets is how many a table has that has room for so many entries: four and a quarter a bucket. A key goes into the emptier of two, so that none
// has to be refused before (TestATableTakesAsManyEntriesAsItIsFor).
func Buckets(entries uint32) uint32 { return max(1, uint32((uint64(entries)*4+16)/17)) }

// Entries is how many entries so many buckets are for.
func Entries(buckets uint32) uint32 { return uint32(uint64(buckets) * 17 / 4) }

// Table is one of the two tables, in memory that packets change at the same time. One caller at a time may change it; others may look.
type Table struct {
	Buckets []Bucket
	// Put puts entries in that there are none of their keys of, as packets do, and makes of each the one that is there then; Owner 0: there is no room.
	Put func(entries []Entry) error
	// Grace waits until all packets that came before have left the data path.
	Grace func() error
}

func first(key uint64, buckets int) int { return int(uint64(uint32(key)) * uint64(buckets) >> 32) }

func second(key uint64, buckets int) int {
	return int(key * 0x9e3779b97f4a7c15 >> 32 * uint64(buckets) >> 32)
}

// word returns where the word of a key is, and what it was a moment ago; nil: there is none.
func (t *Table) word(key uint64) (*uint64, uint64) {
	for _, at := range [...]int{first(key, len(t.Buckets)), second(key, len(t.Buckets))} {
		for i := range t.Buckets[at].Slot {
			slot := &t.Buckets[at].Slot[i]
			if atomic.LoadUint64(&slot.Key) != key {
				continue
			}
			if word := atomic.LoadUint64(&slot.Word); word != 0 {
				return &slot.Word, word
			}
		}
	}
	return nil, 0
}

// Find returns the entry of a key.
func (t *Table) Find(key uint64) (Entry, bool) {
	slot, word := t.word(key)
	if slot == nil {
		return Entry{}, false
	}
	return Read(key, word), true
}

// Insert puts an entry in, unless there is one of its key, and returns which is there then. ok is false when there is no room.
func (t *Table) Insert(e Entry) (there Entry, ok bool, err error) {
	one := [1]Entry{e}
	err = t.Put(one[:])
	return one[0], one[0].Owner != 0, err
}

// Swap makes another entry of one, of the same key. It returns false when that is not as it was.
func (t *Table) Swap(before, after Entry) bool {
	slot, word := t.word(before.Key)
	return slot != nil && word == before.Word() && atomic.CompareAndSwapUint64(slot, word, after.Word())
}

// Each calls do with every entry that was there all the while, in no order, until it returns false.
func (t *Table) Each(do func(e Entry) bool) {
	for i := range t.Buckets {
		b := &t.Buckets[i]
		for taken := atomic.LoadUint64(&b.Head) >> 1 & (1<<slots - 1); taken != 0; taken &= taken - 1 {
			slot := &b.Slot[bits.TrailingZeros64(taken)]
			key := atomic.LoadUint64(&slot.Key)
			if word := atomic.LoadUint64(&slot.Word); key > removedKey && word != 0 && !do(Read(key, word)) {
				return
			}
		}
	}
}

// Implementation constants of Keep.
const removedAtOnce = 1 << 16 // slots that wait for a grace period together

// Keep removes the entries that do not stay, and returns how many it has removed. stays is asked again when a packet has changed an entry meanwhile;
// removed, if it is given, is called with each that is.
func (t *Table) Keep(stays func(e Entry) bool, removed func(e Entry)) (gone int, err error) {
	type at struct{ bucket, slot int }
	var empty []at
	free := func() error {
		if len(empty) == 0 {
			return nil
		}
		if err := t.Grace(); err != nil {
			return err
		}
		for _, one := range empty {
			t.free(&t.Buckets[one.bucket], one.slot)
		}
		empty = empty[:0]
		return nil
	}
	for i := range t.Buckets {
		b := &t.Buckets[i]
		for taken := atomic.LoadUint64(&b.Head) >> 1 & (1<<slots - 1); taken != 0; taken &= taken - 1 {
			p := bits.TrailingZeros64(taken)
			slot := &b.Slot[p]
			key := atomic.LoadUint64(&slot.Key)
			if key == 0 { // a packet fills it
				continue
			}
			for key != removedKey {
				word := atomic.LoadUint64(&slot.Word)
				if word != 0 && stays(Read(key, word)) {
					break
				}
				if word == 0 || atomic.CompareAndSwapUint64(&slot.Word, word, 0) { // 0: an earlier process was ended here
					if word != 0 && removed != nil {
						removed(Read(key, word))
					}
					atomic.StoreUint64(&slot.Key, removedKey)
					key = removedKey
					gone++
				}
			}
			if key == removedKey {
				empty = append(empty, at{i, p})
			}
		}
		if len(empty) >= removedAtOnce {
			if err := free(); err != nil {
				return gone, err
			}
		}
	}
	return gone, free()
}

// free makes a slot usable whose entry was removed, and that no packet looks at any more.
func (t *Table) free(b *Bucket, slot int) {
	atomic.StoreUint64(&b.Slot[slot].Key, 0) // first: who sees the bit not set yet takes it for one that is being filled
	for {
		head := atomic.LoadUint64(&b.Head)
		if atomic.CompareAndSwapUint64(&b.Head, head, head&^(2<<slot)+change) {
			return
		}
	}
}

// Recover frees slots that an earlier process was about to free when it was ended: a packet fills one within a grace period.
func (t *Table) Recover() error {
	type at struct{ bucket, slot int }
	var filled []at
	for i := range t.Buckets {
		b := &t.Buckets[i]
		head := atomic.LoadUint64(&b.Head)
		for p := range b.Slot {
			if head>>1>>p&1 == 1 && atomic.LoadUint64(&b.Slot[p].Key) == 0 {
				filled = append(filled, at{i, p})
			}
		}
	}
	if len(filled) == 0 {
		return nil
	}
	if err := t.Grace(); err != nil {
		return err
	}
	for _, one := range filled {
		if b := &t.Buckets[one.bucket]; atomic.LoadUint64(&b.Slot[one.slot].Key) == 0 {
			t.free(b, one.slot)
		}
	}
	return nil
}

// Count returns how many entries there are, some of which packets may be about to put in.
func (t *Table) Count() (n int) {
	for i := range t.Buckets {
		n += bits.OnesCount64(atomic.LoadUint64(&t.Buckets[i].Head) >> 1 & (1<<slots - 1))
	}
	return n
}

// Keys returns the keys from low to high, both included, around the end if low is above high: in the order of their distance from low.
func (t *Table) Keys(low, high uint64) (keys []uint64) {
	t.Each(func(e Entry) bool {
		if e.Key-low <= high-low {
			keys = append(keys, e.Key-low)
		}
		return true
	})
	slices.Sort(keys)
	for i := range keys {
		keys[i] += low
	}
	return keys
}
