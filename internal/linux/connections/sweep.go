// The sweeper of connection tables, and what a killed one has lost.
package connections

import (
	"math/bits"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
)

// EndReason is why a connection is not in the table any more.
type EndReason uint8

// Reasons. A connection of the last two may live on: it gets another entry with its next packet.
const (
	EndedByFIN EndReason = iota
	EndedByRST
	EndedIdle
	EndedUnused // its server never used the index
	endReasons
)

// EndReasons are the names of the reasons.
var EndReasons = [endReasons]string{"fin", "rst", "idle", "never-used"}

func (r EndReason) String() string { return EndReasons[r] }

// SweepRules say when an entry is freed, and whose are flagged.
type SweepRules struct {
	conntable.Limits
	// Suspect tells who is one: entries are flagged by it. nil: nobody is.
	Suspect func(client netip.Addr) bool
}

// Tally counts the connections of a table by state, after a sweep. Add those of parts.
type Tally [len(conntable.States)]uint32

// Add adds another part's.
func (t *Tally) Add(part Tally) {
	for state := range part {
		t[state] += part[state]
	}
}

// sweep is one call of Sweep.
type sweep struct {
	*Memory
	table Table
	now   uint32
	limit Tally // idle time, in units of last
	rules *SweepRules
	ended func(*Connection, EndReason)
	seen  Connection
	tally Tally
}

// Sweep frees entries by the rules, in count blocks of a table, and tells ended, which may be nil, what they said. What it passes is
// overwritten for the next. Ranges are as for Each. Packets may pass meanwhile: whoever wins the bit or the word has the index.
//
// There must be one sweeper at a time, and its process must not end within Sweep: see Recover.
func (c *Memory) Sweep(t Table, from, count uint32, rules *SweepRules, ended func(*Connection, EndReason)) Tally {
	s := sweep{Memory: c, table: t, now: Clock(), rules: rules, ended: ended}
	units := func(d time.Duration) uint32 { return uint32(min(int64(d/LastUnit), 1<<31)) }
	for state := range s.limit {
		s.limit[state] = units(rules.Of(conntable.State(state)))
	}
	usable := conntable.FreeMask(t.IndexBits)
	for block := from; block < min(t.Blocks, from+count); block++ {
		at := t.Base + block
		for used := c.Blocks[at].Used(usable); used != 0; used &= used - 1 {
			s.look(at, uint32(bits.TrailingZeros64(used)))
		}
	}
	return s.tally
}

func (s *sweep) look(at, index uint32) {
	number := at<<conntable.BlockBits + index
	entry := &s.Entries[number]
	owner := LoadOwner(entry)
	state := owner.State()
	switch {
	case state == conntable.StateNone || !owner.Known(): // its new owner is about to write it
		return
	case !s.isDue(entry, state):
		s.flag(number, entry, owner)
	case state >= conntable.StateFinished:
		if s.freeEnded(at, 1<<index, number, entry) {
			return
		}
	case SwapOwner(entry, owner, owner.Nobody()):
		s.free(at, 1<<index, number, owner)
		return
	}
	s.tally[state]++
}

func (s *sweep) isDue(entry *Entry, state conntable.State) bool {
	return since(s.now, atomic.LoadUint32(&entry.Last), lastBits) >= s.limit[state]
}

// freeEnded frees an entry that any packet may take as well. It reports whether it was free to.
func (s *sweep) freeEnded(at uint32, bit uint64, number uint32, entry *Entry) bool {
	block := &s.Blocks[at]
	if !block.TakeEnded(bit) {
		return false // somebody has just taken it, or is about to set the bit
	}
	for { // the index is ours; an RST after the FIN may still change the word
		owner := LoadOwner(entry)
		if owner.State() < conntable.StateFinished || !s.isDue(entry, owner.State()) { // it was taken and ended again since we looked
			block.End(bit)
			return false
		}
		if SwapOwner(entry, owner, owner.Nobody()) {
			s.free(at, bit, number, owner)
			return true
		}
	}
}

// free gives away an index that is ours and whose entry is nobody's. ended comes last: were it to panic, the index would be lost.
func (s *sweep) free(at uint32, bit uint64, number uint32, owner conntable.Owner) {
	if s.ended != nil {
		s.describe(number, &s.table, s.now, owner, &s.seen) // as long as nobody else may write the entry
	}
	s.Blocks[at].Release(bit)
	if s.ended != nil {
		s.ended(&s.seen, reasonOf(owner.State()))
	}
}

func reasonOf(state conntable.State) EndReason {
	return [len(conntable.States)]EndReason{conntable.StateNew: EndedUnused, conntable.StateOpen: EndedIdle,
		conntable.StateFinished: EndedByFIN, conntable.StateReset: EndedByRST}[state]
}

// flag makes an entry say whether its client is a suspect.
func (s *sweep) flag(number uint32, entry *Entry, owner conntable.Owner) {
	suspect := s.rules.Suspect != nil && s.rules.Suspect(s.client(number, &s.table))
	if suspect != owner.Suspect() {
		SwapOwner(entry, owner, owner.WithSuspect(suspect)) // a packet was faster: the next sweep will see
	}
}

// lost is an index that nobody seems to hold.
type lost struct {
	block, entry uint32
	bit          uint64
	owner        conntable.Owner
}

// Recover frees the indices that an earlier sweeper held when it was killed. No other sweeper may run; grace waits until every packet
// that began before has passed.
//
// Whoever takes an index gives it another owner before its packet has passed. So one without a bit and without a connection, whose owner
// is the same after a grace period, is nobody's; if its connection has ended, the first look may have come just before the bit was set and
// the second just after it was taken, which a third tells.
func (c *Memory) Recover(tables []Table, grace func() error) (freed int, err error) {
	var suspected []lost
	for _, t := range tables {
		usable := conntable.FreeMask(t.IndexBits)
		for at := t.Base; at < t.Base+t.Blocks; at++ {
			for unmarked := usable &^ c.Blocks[at].Marked(); unmarked != 0; unmarked &= unmarked - 1 {
				index := uint32(bits.TrailingZeros64(unmarked))
				l := lost{block: at, entry: at<<conntable.BlockBits + index, bit: 1 << index}
				l.owner = LoadOwner(&c.Entries[l.entry])
				if c.isLost(l) {
					suspected = append(suspected, l)
				}
			}
		}
	}
	for range 2 {
		if len(suspected) == 0 {
			return 0, nil
		}
		if err := grace(); err != nil {
			return 0, err
		}
		still := suspected[:0]
		for _, l := range suspected {
			if c.isLost(l) {
				still = append(still, l)
			}
		}
		suspected = still
	}
	for _, l := range suspected {
		if SwapOwner(&c.Entries[l.entry], l.owner, l.owner.Nobody()) {
			c.Blocks[l.block].Release(l.bit)
			freed++
		}
	}
	return freed, nil
}

// isLost reports whether an index is as it was found: with no bit, and no connection that lives.
func (c *Memory) isLost(l lost) bool {
	return c.Blocks[l.block].Marked()&l.bit == 0 && !l.owner.State().Lives() && LoadOwner(&c.Entries[l.entry]) == l.owner
}
