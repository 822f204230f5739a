package replica

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// Implementation constants.
const (
	bucketRecords = 16 // more than this, and a bucket is divided
	mostBits      = 24 // of keys that the directory looks at; only keys that are not random need more than a few
)

// record is an entry of a table.
type record struct {
	key       ring.Key
	owner     Owner
	period    uint32 // when last used
	cacheable bool   // may be answered from
}

// table has records in the order of their keys: extendible hashing (Fagin, Nievergelt, Pippenger and Strong, 1979) by the first bits of the
// key. Keys are random within the arcs of a node, and there are none elsewhere, so that buckets must be divided where keys are. The zero
// value is empty.
type table struct {
	directory []*bucket // 2^bits; 2^(bits-depth) places in a row for each bucket
	bits      uint
	count     int
}

// bucket has the records whose keys begin with the same bits, in order.
type bucket struct {
	records []record
	depth   uint // number of these bits
}

func (t *table) place(key ring.Key) int { return int(key >> (64 - t.bits)) }

// find returns the record of a key, or nil. It is valid until the table changes.
func (t *table) find(key ring.Key) *record {
	if t.count == 0 {
		return nil
	}
	records := t.directory[t.place(key)].records
	for i := range records {
		if records[i].key == key {
			return &records[i]
		}
	}
	return nil
}

// insert puts in a record whose key is new to the table.
func (t *table) insert(r record) {
	if t.directory == nil {
		t.directory = []*bucket{{}}
	}
	b := t.directory[t.place(r.key)]
	for len(b.records) >= bucketRecords && b.depth < mostBits {
		t.divide(b, t.place(r.key))
		b = t.directory[t.place(r.key)]
	}
	at := len(b.records)
	for at > 0 && b.records[at-1].key > r.key {
		at--
	}
	b.records = slices.Insert(b.records, at, r)
	t.count++
}

// divide makes two buckets of one, of which a place in the directory is given.
func (t *table) divide(b *bucket, place int) {
	if b.depth == t.bits {
		doubled := make([]*bucket, 2*len(t.directory))
		for i := range doubled {
			doubled[i] = t.directory[i/2]
		}
		t.directory, t.bits, place = doubled, t.bits+1, 2*place
	}
	b.depth++
	half := 1 << (t.bits - b.depth)
	middle := place&^(2*half-1) + half
	at := len(b.records)
	for at > 0 && t.place(b.records[at-1].key) >= middle {
		at--
	}
	upper := &bucket{records: append(make([]record, 0, bucketRecords), b.records[at:]...), depth: b.depth}
	b.records = b.records[:at]
	for i := range half {
		t.directory[middle+i] = upper
	}
}

// buckets calls do with the buckets of keys from low to high, in order, until it returns false.
func (t *table) buckets(low, high ring.Key, do func(b *bucket) bool) bool {
	if t.directory == nil {
		return true
	}
	for i, last := t.place(low), t.place(high); i <= last; {
		b := t.directory[i]
		if !do(b) {
			return false
		}
		width := 1 << (t.bits - b.depth)
		i = i&^(width-1) + width
	}
	return true
}

// keep removes the records from low to high, both included, that do not stay. On a circle low may be above high.
func (t *table) keep(low, high ring.Key, stays func(r *record) bool) {
	if low > high {
		t.keep(low, ^ring.Key(0), stays)
		low = 0
	}
	t.buckets(low, high, func(b *bucket) bool {
		kept := b.records[:0]
		for i := range b.records {
			if r := &b.records[i]; r.key < low || r.key > high || stays(r) {
				kept = append(kept, *r)
			}
		}
		t.count -= len(b.records) - len(kept)
		b.records = kept
		return true
	})
}

// each calls do with the records from low to high, both included, in order around the circle, until it returns false.
func (t *table) each(low, high ring.Key, do func(r *record) bool) bool {
	if low > high {
		if !t.each(low, ^ring.Key(0), do) {
			return false
		}
		low = 0
	}
	return t.buckets(low, high, func(b *bucket) bool {
		for i := range b.records {
			if r := &b.records[i]; r.key >= low && r.key <= high && !do(r) {
				return false
			}
		}
		return true
	})
}

func (t *table) clone() table {
	copied := *t
	if t.directory == nil {
		return copied
	}
	copied.directory = make([]*bucket, len(t.directory))
	for i, b := range t.directory {
		if i > 0 && t.directory[i-1] == b {
			copied.directory[i] = copied.directory[i-1]
		} else {
			copied.directory[i] = &bucket{slices.Clone(b.records), b.depth}
		}
	}
	return copied
}
