package cheetah

import (
	"github.com/ballast-lb/ballast/internal/algo/buckets"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// stable is Beamer's controller as section V-C has it: a server that is added gets 1/N of the buckets from the others, the oldest ones; those of
// one that is removed are divided equally. internal/algo/buckets departs from it: there a server that comes back gets its own buckets back.
type stable struct {
	drawn      *random.Stream // not nil: it gets buckets drawn at random instead of the oldest ones
	owners     []uint32
	counts     []int    // by server: its buckets
	present    []uint32 // servers
	turn       int      // place in present of who got a bucket last
	next, prev []int32  // buckets by when they last moved; the last place of both is the list's own
}

// newStable returns a table of so many buckets for servers 0 to present-1 of those that may ever be there.
func newStable(present, servers, size int, drawn *random.Stream) *stable {
	s := &stable{drawn: drawn, owners: make([]uint32, size), counts: make([]int, servers), present: dispatch.Everybody(present), next: make([]int32, size+1), prev: make([]int32, size+1)}
	for i := range s.owners {
		s.owners[i] = uint32(i % present)
		s.counts[i%present]++
	}
	for i := range int32(size + 1) {
		s.next[i], s.prev[i] = (i+1)%int32(size+1), (i+int32(size))%int32(size+1)
	}
	return s
}

// Owners implements controller.
func (s *stable) Owners() []uint32 { return s.owners }

// Return implements controller: a server comes, whether it has been there before or not.
func (s *stable) Return(server uint32) (moves []buckets.Move) {
	s.present = append(s.present, server)
	fair, head := len(s.owners)/len(s.present), int32(len(s.owners))
	next := s.next[head]
	for len(moves) < fair { // the others have more than that together
		bucket := next
		if s.drawn != nil {
			bucket = int32(s.drawn.Intn(len(s.owners)))
		}
		next = s.next[bucket]
		if s.counts[s.owners[bucket]] > fair && s.owners[bucket] != server {
			moves = append(moves, s.hand(bucket, server))
		}
	}
	return moves
}

// Remove implements controller. The server must be there, and not be the last one.
func (s *stable) Remove(server uint32) (moves []buckets.Move) {
	for i, other := range s.present {
		if other == server {
			s.present = append(s.present[:i], s.present[i+1:]...)
			break
		}
	}
	for bucket, owner := range s.owners {
		if owner == server {
			s.turn = (s.turn + 1) % len(s.present)
			moves = append(moves, s.hand(int32(bucket), s.present[s.turn]))
		}
	}
	return moves
}

// hand gives a bucket, which thereby becomes the newest, to a server.
func (s *stable) hand(bucket int32, to uint32) buckets.Move {
	s.counts[s.owners[bucket]]--
	s.counts[to]++
	s.owners[bucket] = to
	head := int32(len(s.owners))
	s.next[s.prev[bucket]], s.prev[s.next[bucket]] = s.next[bucket], s.prev[bucket]
	newest := s.prev[head]
	s.next[newest], s.prev[bucket], s.next[bucket], s.prev[head] = bucket, newest, head, bucket
	return buckets.Move{Bucket: int(bucket), Owner: to}
}
