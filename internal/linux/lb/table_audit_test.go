package lb

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/plan"
)

// tableState is a copy of a table's memory.
type tableState struct {
	place   plan.TablePlace
	entries []lbConnection
	blocks  []lbConnectionBlock
}

func (w *world) stateOfTable(name string) tableState {
	entries, _, blocks := w.tableMemory(name)
	return tableState{w.tables.Places()[name].Table, slices.Clone(entries), slices.Clone(blocks)}
}

// owned is how many entries tell of a connection, ended ones too.
func (s *tableState) owned() (count uint64) {
	for i := range s.entries {
		if ownerOf(&s.entries[i]).state() != ConnectionNone {
			count++
		}
	}
	return count
}

// faults says where a table at rest breaks the rules of bpf/state/connections.h: each index is free, or ended, or a connection's.
func (s *tableState) faults() (faults []string) {
	for i := range s.entries {
		block, bit := conntable.Bit(uint32(i))
		_, index := conntable.Index(uint32(i), s.place.IndexBits)
		o := ownerOf(&s.entries[i])
		free, ended := s.blocks[block].Free&bit != 0, s.blocks[block].Ended&bit != 0
		fault := ""
		switch state := o.state(); {
		case index == 0 && (free || ended || o != 0):
			fault = "index 0 is used"
		case index == 0:
		case free && ended:
			fault = "free, and ended"
		case state > ConnectionReset:
			fault = fmt.Sprintf("state %d", state)
		case state == ConnectionNone && o != o.nobody():
			fault = fmt.Sprintf("nobody's word is %016x", uint64(o))
		case free && state != ConnectionNone:
			fault = "free, and a connection's that is " + state.String()
		case ended && state < ConnectionFinished:
			fault = "ended, and its connection is " + state.String()
		case !free && !ended && state == ConnectionNone:
			fault = "lost"
		case !free && !ended && state >= ConnectionFinished:
			fault = "lost by a connection that is " + state.String()
		}
		if fault != "" {
			faults = append(faults, fmt.Sprintf("entry %d: %s", i, fault))
		}
	}
	return faults
}

// ledger is what has become of the indices that were given to connections.
type ledger struct{ added, swept, reclaimed, owned uint64 }

// balances reports whether each was given to one connection at a time. Two that got the same one leave one entry.
func (l ledger) balances() bool { return l.added == l.swept+l.reclaimed+l.owned }

// A healthy table, and each way of breaking it: the audit must see every one.
func TestTheAuditFindsWhatIsWrong(t *testing.T) {
	healthy := func() (tableState, fakeTable) {
		f := newFakeTable(2, 3)
		for i := range 20 {
			entry := f.take(uint32(i%2), flowFrom(i), 1, ConnectionNew+ConnectionState(i%2))
			if i%3 == 0 {
				f.end(entry, ConnectionFinished+ConnectionState(i%2))
			}
		}
		return tableState{f.TablePlace, f.entries[64:192], f.blocks[1:3]}, f
	}
	if s, _ := healthy(); len(s.faults()) > 0 || s.owned() != 20 {
		t.Fatalf("%d owned, faults %v", s.owned(), s.faults())
	}
	first := func(s *tableState, want func(owner, bool) bool) int {
		for i := range s.entries {
			if free := s.blocks[i/64].Free>>(i%64)&1 != 0; i%8 != 0 && want(ownerOf(&s.entries[i]), free) {
				return i
			}
		}
		t.Fatal("the test has none")
		return 0
	}
	isFree := func(_ owner, free bool) bool { return free }
	isHeld := func(o owner, _ bool) bool { return o.state() == ConnectionOpen }
	isEnded := func(o owner, _ bool) bool { return o.state() >= ConnectionFinished }
	for want, spoil := range map[string]func(*tableState){
		"free, and a connection's": func(s *tableState) { i := first(s, isHeld); s.blocks[i/64].Free |= 1 << (i % 64) },
		"ended, and its":           func(s *tableState) { i := first(s, isHeld); s.blocks[i/64].Ended |= 1 << (i % 64) },
		"lost":                     func(s *tableState) { i := first(s, isFree); s.blocks[i/64].Free &^= 1 << (i % 64) },
		"lost by":                  func(s *tableState) { i := first(s, isEnded); s.blocks[i/64].Ended &^= 1 << (i % 64) },
		"free, and ended":          func(s *tableState) { i := first(s, isFree); s.blocks[i/64].Ended |= 1 << (i % 64) },
		"index 0":                  func(s *tableState) { s.blocks[1].Free |= 1 << 8 },
		"nobody's word":            func(s *tableState) { s.entries[first(s, isFree)].Owner.Word |= 1 << 32 },
		"state 10":                 func(s *tableState) { s.entries[first(s, isHeld)].Owner.Word |= 8 << 48 },
	} {
		s, _ := healthy()
		if spoil(&s); !slices.ContainsFunc(s.faults(), func(fault string) bool { return strings.Contains(fault, want) }) {
			t.Errorf("%s: found %v", want, s.faults())
		}
	}
}

// A take that reads, looks and writes instead of one atomic step gives an index to two; the ledger must see it.
func TestTheLedgerFindsAnIndexThatTwoHold(t *testing.T) {
	for _, torn := range []bool{false, true} {
		f := newFakeTable(1, 6)
		l := ledger{}
		for i := range 10 {
			before := f.blocks[1].Free
			f.take(0, flowFrom(2*i), 1, ConnectionOpen)
			if torn && i == 5 { // another CPU has read the word before and writes what it made of it
				f.blocks[1].Free = before
			}
			f.take(0, flowFrom(2*i+1), 1, ConnectionOpen)
			l.added += 2
		}
		s := tableState{f.TablePlace, f.entries[64:128], f.blocks[1:2]}
		if l.owned = s.owned(); l.balances() == torn {
			t.Errorf("torn %t: %+v balances: %t", torn, l, l.balances())
		}
	}
}
