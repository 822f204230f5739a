// Package buckets divides the hash space among servers so that a change moves as little as it can: stable hashing of Beamer (Olteanu et al.,
// "Stateless Datacenter Load-balancing with Beamer", NSDI'18, section 4.1). A controller makes the changes and tells all load balancers.
//
// Every bucket has a home. While its home is away, another server has it; when its home comes back, so does the bucket.
package buckets

import "slices"

// Move says that a bucket has another owner from now on.
type Move struct {
	Bucket int
	Owner  uint32
}

// Table says who owns every bucket. Make one by New. Not safe for concurrent use.
type Table struct {
	owners  []uint32 // by bucket; its home is bucket modulo the number of servers
	servers []server
	present []uint32 // servers, in no order
	turn    int      // place in present of who gets the next bucket whose home is away
	moves   []Move   // of the latest change, reused
}

type server struct {
	place   int      // in present; absent: it is away
	guests  []uint32 // buckets that it has had from others, some of which it may have lost again
	visited int      // guests that it still has
}

const absent = -1

// New returns the table of servers 0 to servers-1, all present, each with as many buckets.
func New(servers, perServer int) *Table {
	t := &Table{owners: make([]uint32, servers*perServer), servers: make([]server, servers)}
	for bucket := range t.owners {
		t.owners[bucket] = t.home(bucket)
	}
	for s := range t.servers {
		t.servers[s].place = s
		t.present = append(t.present, uint32(s))
	}
	return t
}

func (t *Table) home(bucket int) uint32 { return uint32(bucket % len(t.servers)) }

// Owners returns the owner of every bucket. It is the table's own: read it only.
func (t *Table) Owners() []uint32 { return t.owners }

// Present tells whether a server is there.
func (t *Table) Present(s uint32) bool { return t.servers[s].place != absent }

// Remove takes a server out: its buckets go to the others, who take turns. The last server keeps its buckets, without being present. The result
// is valid until the next change. Costs as much as buckets are moved.
func (t *Table) Remove(s uint32) []Move {
	t.moves = t.moves[:0]
	gone := &t.servers[s]
	if gone.place == absent {
		return nil
	}
	last := t.present[len(t.present)-1]
	t.present[gone.place] = last
	t.servers[last].place = gone.place
	t.present = t.present[:len(t.present)-1]
	gone.place = absent
	if len(t.present) == 0 {
		return nil
	}
	for bucket := int(s); bucket < len(t.owners); bucket += len(t.servers) {
		if t.owners[bucket] == s {
			t.hand(bucket, t.next())
		}
	}
	guests := gone.guests
	gone.guests = nil
	for _, bucket := range guests {
		if t.owners[bucket] == s {
			t.hand(int(bucket), t.next())
		}
	}
	return t.moves
}

// Return puts a server back: it gets the buckets whose home it is. The result is valid until the next change.
func (t *Table) Return(s uint32) []Move {
	t.moves = t.moves[:0]
	if t.servers[s].place != absent {
		return nil
	}
	t.servers[s].place = len(t.present)
	t.present = append(t.present, s)
	if len(t.present) == 1 { // all buckets are with servers that are away
		for bucket, owner := range t.owners {
			if owner != s {
				t.hand(bucket, s)
			}
		}
		return t.moves
	}
	for bucket := int(s); bucket < len(t.owners); bucket += len(t.servers) {
		if t.owners[bucket] != s {
			t.hand(bucket, s)
		}
	}
	return t.moves
}

// next returns whose turn it is to take a bucket.
func (t *Table) next() uint32 {
	if t.turn++; t.turn >= len(t.present) {
		t.turn = 0
	}
	return t.present[t.turn]
}

func (t *Table) hand(bucket int, to uint32) {
	from := t.owners[bucket]
	if home := t.home(bucket); from != home {
		t.servers[from].visited--
	}
	t.owners[bucket] = to
	t.moves = append(t.moves, Move{Bucket: bucket, Owner: to})
	host := &t.servers[to]
	if t.home(bucket) == to {
		return
	}
	host.visited++
	if len(host.guests) > 2*host.visited+16 { // many have gone home
		host.guests = slices.DeleteFunc(host.guests, func(guest uint32) bool { return t.owners[guest] != to || int(guest) == bucket })
		slices.Sort(host.guests) // one may have come twice
		host.guests = slices.Compact(host.guests)
	}
	host.guests = append(host.guests, uint32(bucket))
}
