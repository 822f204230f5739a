package replica

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// bucketRecords is how many records a bucket has on average before the table doubles.
const bucketRecords = 8

// record is an entry of a table.
type record struct {
	key       ring.Key
	owner     Owner
	period    uint32 // when last used
	cacheable bool   // may be answered from
}

// table has records in the order of their keys: buckets by the first bits of the key, which look random. The zero value is empty.
type table struct {
	buckets [][]record // 2^bits
	bits    uint
	count   int
}

func (t *table) bucket(key ring.Key) int { return int(key >> (64 - t.bits)) }

// find returns the record of a key, or nil. It is valid until the table changes.
func (t *table) find(key ring.Key) *record {
	if t.count == 0 {
		return nil
	}
	bucket := t.buckets[t.bucket(key)]
	for i := range bucket {
		if bucket[i].key == key {
			return &bucket[i]
		}
	}
	return nil
}

// insert puts in a record whose key is new to the table.
func (t *table) insert(r record) {
	if t.count >= bucketRecords*len(t.buckets) {
		t.double()
	}
	bucket := &t.buckets[t.bucket(r.key)]
	at := len(*bucket)
	for at > 0 && (*bucket)[at-1].key > r.key {
		at--
	}
	*bucket = slices.Insert(*bucket, at, r)
	t.count++
}

func (t *table) double() {
	if len(t.buckets) == 0 {
		t.buckets = make([][]record, 1)
		return
	}
	doubled := make([][]record, 2*len(t.buckets))
	t.bits++
	for i, bucket := range t.buckets {
		middle := ring.Key(2*i+1) << (64 - t.bits)
		at, _ := slices.BinarySearchFunc(bucket, middle, func(r record, key ring.Key) int {
			if r.key < key {
				return -1
			}
			return 1
		})
		doubled[2*i], doubled[2*i+1] = bucket[:at:at], slices.Clone(bucket[at:])
	}
	t.buckets = doubled
}

// keep removes the records from low to high, both included, that do not stay. On a circle low may be above high.
func (t *table) keep(low, high ring.Key, stays func(r *record) bool) {
	if low > high {
		t.keep(low, ^ring.Key(0), stays)
		low = 0
	}
	if t.count == 0 {
		return
	}
	for i := t.bucket(low); i <= t.bucket(high); i++ {
		bucket := t.buckets[i]
		kept := bucket[:0]
		for j := range bucket {
			if r := &bucket[j]; r.key < low || r.key > high || stays(r) {
				kept = append(kept, *r)
			}
		}
		t.count -= len(bucket) - len(kept)
		t.buckets[i] = kept
	}
}

// each calls do with the records from low to high, both included, in order around the circle, until it returns false.
func (t *table) each(low, high ring.Key, do func(r *record) bool) bool {
	if low > high {
		if !t.each(low, ^ring.Key(0), do) {
			return false
		}
		low = 0
	}
	if t.count == 0 {
		return true
	}
	for i := t.bucket(low); i <= t.bucket(high); i++ {
		for j := range t.buckets[i] {
			if r := &t.buckets[i][j]; r.key >= low && r.key <= high && !do(r) {
				return false
			}
		}
	}
	return true
}

func (t *table) clone() table {
	copied := *t
	copied.buckets = make([][]record, len(t.buckets))
	for i, bucket := range t.buckets {
		copied.buckets[i] = slices.Clone(bucket)
	}
	return copied
}
