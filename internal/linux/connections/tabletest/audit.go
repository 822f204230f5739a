// What is wrong with a table.
package tabletest

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Copy is a copy of a table's memory.
type Copy struct {
	Place   plan.TablePlace
	Entries []connections.Entry
	Blocks  []conntable.Block
}

// Owned is how many entries tell of a connection, ended ones too.
func (s *Copy) Owned() (count uint64) {
	for i := range s.Entries {
		if connections.LoadOwner(&s.Entries[i]).State() != conntable.StateNone {
			count++
		}
	}
	return count
}

// Faults says where a table at rest breaks the rules of bpf/lb/state/connections.h: each index is free, or ended, or a connection's.
func (s *Copy) Faults() (faults []string) {
	for i := range s.Entries {
		block, bit := conntable.Bit(uint32(i))
		_, index := conntable.Index(uint32(i), s.Place.IndexBits)
		o := connections.LoadOwner(&s.Entries[i])
		free, ended := s.Blocks[block].Free&bit != 0, s.Blocks[block].Ended&bit != 0
		fault := ""
		switch state := o.State(); {
		case index == 0 && (free || ended || o != 0):
			fault = "index 0 is used"
		case index == 0:
		case free && ended:
			fault = "free, and ended"
		case state > conntable.StateReset:
			fault = fmt.Sprintf("state %d", state)
		case state == conntable.StateNone && o != o.Nobody():
			fault = fmt.Sprintf("nobody's word is %016x", uint64(o))
		case free && state != conntable.StateNone:
			fault = "free, and a connection's that is " + state.String()
		case ended && state < conntable.StateFinished:
			fault = "ended, and its connection is " + state.String()
		case !free && !ended && state == conntable.StateNone:
			fault = "lost"
		case !free && !ended && state >= conntable.StateFinished:
			fault = "lost by a connection that is " + state.String()
		}
		if fault != "" {
			faults = append(faults, fmt.Sprintf("entry %d: %s", i, fault))
		}
	}
	return faults
}

// Ledger is what has become of the indices that were given to connections.
type Ledger struct{ Added, Swept, Reclaimed, Owned uint64 }

// Balances reports whether each was given to one connection at a time. Two that got the same one leave one entry.
func (l Ledger) Balances() bool { return l.Added == l.Swept+l.Reclaimed+l.Owned }
