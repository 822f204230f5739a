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

// Record is what a node knows of a connection.
type Record struct {
	Key       ring.Key
	Owner     Owner
	Period    uint32 // of the node, when last used
	Cacheable bool   // may be answered from
}

// Table holds records, one of a key at most; keys are 2 and above. Packets may change it between two calls, and during one.
type Table interface {
	// Find returns the record of a key.
	Find(key ring.Key) (Record, bool)
	// Insert puts in a record, unless there is one of its key, and returns which there is then. ok is false when there is no room.
	Insert(r Record) (there Record, ok bool)
	// InsertAll does Insert with several, and makes of each the one that there is then; owner 0: there is no room.
	InsertAll(records []Record)
	// Swap makes another record of one, of the same key. It returns false when that is not as it was.
	Swap(before, after Record) bool
	// Keep removes the records that do not stay.
	Keep(stays func(r Record) bool)
	// Each calls do with the records from low to high, both included, in order around the circle (low may be above high), until it returns
	// false. Of what comes in meanwhile it may leave out any; and where it begins where the last call with the same high was ended, what has
	// come in since the first of such calls.
	Each(low, high ring.Key, do func(r Record) bool)
	// EachOf does as Each, but of what has come in since it was first called with the same view it may leave out any.
	EachOf(view uint32, low, high ring.Key, do func(r Record) bool)
	// Len returns the number of records.
	Len() int
}

// memory is a table in the order of keys: extendible hashing (Fagin, Nievergelt, Pippenger and Strong, 1979) by the first bits of the
// key. Keys are random within the arcs of a node, and there are none elsewhere, so that buckets must be divided where keys are. The zero
// value is empty.
type memory struct {
	directory []*bucket // 2^bits; 2^(bits-depth) places in a row for each bucket
	bits      uint
	count     int
}

// NewMemory returns an empty table that always has room.
func NewMemory() Table { return new(memory) }

// bucket has the records whose keys begin with the same bits, in order.
type bucket struct {
	records []Record
	depth   uint // number of these bits
}

func (t *memory) place(key ring.Key) int { return int(key >> (64 - t.bits)) }

func (t *memory) find(key ring.Key) *Record {
	if t.count == 0 {
		return nil
	}
	records := t.directory[t.place(key)].records
	for i := range records {
		if records[i].Key == key {
			return &records[i]
		}
	}
	return nil
}

// Find is as Table says.
func (t *memory) Find(key ring.Key) (Record, bool) {
	if r := t.find(key); r != nil {
		return *r, true
	}
	return Record{}, false
}

// Swap is as Table says.
func (t *memory) Swap(before, after Record) bool {
	r := t.find(before.Key)
	if r == nil || *r != before {
		return false
	}
	*r = after
	return true
}

// Len is as Table says.
func (t *memory) Len() int { return t.count }

// Insert is as Table says. There is always room.
func (t *memory) Insert(r Record) (Record, bool) {
	if there := t.find(r.Key); there != nil {
		return *there, true
	}
	if t.directory == nil {
		t.directory = []*bucket{{}}
	}
	b := t.directory[t.place(r.Key)]
	for len(b.records) >= bucketRecords && b.depth < mostBits {
		t.divide(b, t.place(r.Key))
		b = t.directory[t.place(r.Key)]
	}
	at := len(b.records)
	for at > 0 && b.records[at-1].Key > r.Key {
		at--
	}
	b.records = slices.Insert(b.records, at, r)
	t.count++
	return r, true
}

// InsertAll is as Table says.
func (t *memory) InsertAll(records []Record) {
	for i := range records {
		records[i], _ = t.Insert(records[i])
	}
}

// divide makes two buckets of one, of which a place in the directory is given.
func (t *memory) divide(b *bucket, place int) {
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
	for at > 0 && t.place(b.records[at-1].Key) >= middle {
		at--
	}
	upper := &bucket{records: append(make([]Record, 0, bucketRecords), b.records[at:]...), depth: b.depth}
	b.records = b.records[:at]
	for i := range half {
		t.directory[middle+i] = upper
	}
}

// buckets calls do with the buckets of keys from low to high, in order, until it returns false.
func (t *memory) buckets(low, high ring.Key, do func(b *bucket) bool) bool {
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

// Keep is as Table says.
func (t *memory) Keep(stays func(r Record) bool) {
	t.buckets(0, ^ring.Key(0), func(b *bucket) bool {
		kept := b.records[:0]
		for _, r := range b.records {
			if stays(r) {
				kept = append(kept, r)
			}
		}
		t.count -= len(b.records) - len(kept)
		b.records = kept
		return true
	})
}

// Each is as Table says.
func (t *memory) Each(low, high ring.Key, do func(r Record) bool) { t.each(low, high, do) }

// EachOf is as Table says. It leaves out nothing.
func (t *memory) EachOf(_ uint32, low, high ring.Key, do func(r Record) bool) { t.each(low, high, do) }

func (t *memory) each(low, high ring.Key, do func(r Record) bool) bool {
	if low > high {
		if !t.each(low, ^ring.Key(0), do) {
			return false
		}
		low = 0
	}
	return t.buckets(low, high, func(b *bucket) bool {
		for _, r := range b.records {
			if r.Key >= low && r.Key <= high && !do(r) {
				return false
			}
		}
		return true
	})
}

func (t *memory) clone() *memory {
	same := *t
	copied := &same
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
