// The words of an entry and of a block, which packets change at the same time.
package conntable

import "sync/atomic"

// State is how far a connection is, as its client's packets tell: enum connection_state.
type State uint8

// States. FIN and RST are those of the client.
const (
	StateNone = State(iota) // no connection
	StateNew                // its server has not used the index yet
	StateOpen
	StateFinished
	StateReset
	states
)

// States are the names of the states.
var States = [states]string{"none", "new", "open", "finished", "reset"}

func (s State) String() string { return States[s] }

// Lives reports whether somebody has the entry, and has not ended.
func (s State) Lives() bool { return s == StateNew || s == StateOpen }

// Ended reports whether a FIN or RST was seen: the index may be taken.
func (s State) Ended() bool { return s == StateFinished || s == StateReset }

// Owner is union connection_owner.
type Owner uint64

const (
	ownerStateAt    = 48
	ownerStateMask  = Owner(15) << ownerStateAt
	ownerSuspect    = Owner(1) << 52 // CONNECTION_SUSPECT
	ownerGeneration = Owner(0xff) << 56
)

func (o Owner) State() State  { return State(o & ownerStateMask >> ownerStateAt) }
func (o Owner) ID() uint16    { return uint16(o >> 32) }
func (o Owner) Port() uint16  { return uint16(port(uint16(o))) }
func (o Owner) Suspect() bool { return o&ownerSuspect != 0 }

// Known reports whether the state is one of ours.
func (o Owner) Known() bool { return o.State() < states }

// With is the word in another state.
func (o Owner) With(state State) Owner {
	return o&^ownerStateMask | Owner(state)<<ownerStateAt
}

// WithSuspect is the word of a connection that is one, or not.
func (o Owner) WithSuspect(suspect bool) Owner {
	if suspect {
		return o | ownerSuspect
	}
	return o &^ ownerSuspect
}

// Same reports whether two words are of one connection: its state and flags may change.
func (o Owner) Same(other Owner) bool { return (o^other)&^(ownerStateMask|ownerSuspect) == 0 }

// Nobody is what is left when a connection gives its index up: the next one gets another generation.
func (o Owner) Nobody() Owner { return o & ownerGeneration }

// Block is struct connection_block: which of its indices may be taken.
type Block struct{ Free, Ended uint64 }

// Take takes the lowest free index of those in mask, else the lowest whose connection has ended. It returns its bit; 0: there is none.
func (b *Block) Take(mask uint64) (bit uint64) {
	for _, word := range [...]*uint64{&b.Free, &b.Ended} {
		for left := atomic.LoadUint64(word) & mask; left != 0; left = atomic.LoadUint64(word) & mask {
			if bit = left & -left; atomic.AndUint64(word, ^bit)&bit != 0 {
				return bit
			}
		}
	}
	return 0
}

// TakeEnded takes an index whose connection has ended, unless somebody was faster.
func (b *Block) TakeEnded(bit uint64) bool {
	return atomic.LoadUint64(&b.Ended)&bit != 0 && atomic.AndUint64(&b.Ended, ^bit)&bit != 0
}

// End says that the connection of an index has ended.
func (b *Block) End(bit uint64) { atomic.OrUint64(&b.Ended, bit) }

// Release gives an index back that is the caller's.
func (b *Block) Release(bit uint64) { atomic.OrUint64(&b.Free, bit) }

// Used returns the indices of those in mask that are not free: a connection has them, or had them.
func (b *Block) Used(mask uint64) uint64 { return mask &^ atomic.LoadUint64(&b.Free) }

// Marked returns the indices that may be taken.
func (b *Block) Marked() uint64 { return atomic.LoadUint64(&b.Free) | atomic.LoadUint64(&b.Ended) }
