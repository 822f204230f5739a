package replica

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// record is an entry of a table.
type record struct {
	key       ring.Key
	owner     Owner  // 0: the place is free
	period    uint32 // when last used
	cacheable bool   // may be answered from
}

// table has records in the order of their keys: an array in which each stands at the place that the first bits of its key lead to, or as
// few places later as there is room (ordered linear probing: Amble and Knuth, "Ordered hash tables", 1974). Keys look random. The zero
// value is empty.
type table struct {
	places []record // 2^bits, and those that the last of them needed more
	bits   uint
	count  int
}

func (t *table) home(key ring.Key) int { return int(key >> (64 - t.bits)) }

// seek returns the first place from a key's own on that is free, or where a key stands that is not smaller.
func (t *table) seek(key ring.Key) int {
	at := t.home(key)
	for at < len(t.places) && t.places[at].owner != 0 && t.places[at].key < key {
		at++
	}
	return at
}

// find returns the record of a key, or nil. It is valid until the table changes.
func (t *table) find(key ring.Key) *record {
	if at := t.seek(key); at < len(t.places) && t.places[at].key == key && t.places[at].owner != 0 {
		return &t.places[at]
	}
	return nil
}

// insert puts in a record whose key is new to the table.
func (t *table) insert(r record) {
	if 3*(t.count+1) > 2*(1<<t.bits) || len(t.places) == 0 {
		t.double()
	}
	t.count++
	at := t.seek(r.key)
	for ; at < len(t.places); at++ {
		r, t.places[at] = t.places[at], r
		if r.owner == 0 {
			return
		}
	}
	t.places = append(t.places, r)
}

func (t *table) double() {
	old := t.places
	t.bits += 2
	t.places = make([]record, 1<<t.bits)
	free := 0 // all from here on are
	for _, r := range old {
		if r.owner != 0 {
			free = t.settle(r, free)
		}
	}
}

// settle puts a record at the first place from free on that may be its, and returns the next.
func (t *table) settle(r record, free int) int {
	at := max(t.home(r.key), free)
	for at >= len(t.places) {
		t.places = append(t.places, record{})
	}
	t.places[at] = r
	return at + 1
}

// keep removes the records from low to high, both included, that do not stay. On a circle low may be above high.
func (t *table) keep(low, high ring.Key, stays func(r *record) bool) {
	if low > high {
		t.keep(low, ^ring.Key(0), stays)
		low = 0
	}
	last := t.home(high)
	free := t.seek(low)
	for at := free; at < len(t.places); at++ {
		r := &t.places[at]
		if r.owner == 0 {
			if at >= last {
				return
			}
			continue
		}
		if r.key <= high && !stays(r) {
			*r = record{}
			t.count--
			continue
		}
		moved := *r
		*r = record{}
		free = t.settle(moved, free)
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
	last := t.home(high)
	for at := t.seek(low); at < len(t.places); at++ {
		r := &t.places[at]
		if r.owner == 0 && at >= last || r.owner != 0 && r.key > high {
			return true
		}
		if r.owner != 0 && !do(r) {
			return false
		}
	}
	return true
}

func (t *table) clone() table {
	copied := *t
	copied.places = slices.Clone(t.places)
	return copied
}
