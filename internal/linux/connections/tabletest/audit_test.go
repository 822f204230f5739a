package tabletest

import (
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
)

// A healthy table, and each way of breaking it: the audit must see every one.
func TestTheAuditFindsWhatIsWrong(t *testing.T) {
	healthy := func() (Copy, Fake) {
		f := NewFake(2, 3)
		for i := range 20 {
			entry := f.Take(uint32(i%2), FlowFrom(i), 1, conntable.StateNew+conntable.State(i%2))
			if i%3 == 0 {
				f.End(entry, conntable.StateFinished+conntable.State(i%2))
			}
		}
		return Copy{f.TablePlace, f.Entries[64:192], f.Blocks[1:3]}, f
	}
	if s, _ := healthy(); len(s.Faults()) > 0 || s.Owned() != 20 {
		t.Fatalf("%d owned, faults %v", s.Owned(), s.Faults())
	}
	first := func(s *Copy, want func(conntable.Owner, bool) bool) int {
		for i := range s.Entries {
			if free := s.Blocks[i/64].Free>>(i%64)&1 != 0; i%8 != 0 && want(connections.LoadOwner(&s.Entries[i]), free) {
				return i
			}
		}
		t.Fatal("the test has none")
		return 0
	}
	isFree := func(_ conntable.Owner, free bool) bool { return free }
	isHeld := func(o conntable.Owner, _ bool) bool { return o.State() == conntable.StateOpen }
	isEnded := func(o conntable.Owner, _ bool) bool { return o.State() >= conntable.StateFinished }
	for want, spoil := range map[string]func(*Copy){
		"free, and a connection's": func(s *Copy) { i := first(s, isHeld); s.Blocks[i/64].Free |= 1 << (i % 64) },
		"ended, and its":           func(s *Copy) { i := first(s, isHeld); s.Blocks[i/64].Ended |= 1 << (i % 64) },
		"lost":                     func(s *Copy) { i := first(s, isFree); s.Blocks[i/64].Free &^= 1 << (i % 64) },
		"lost by":                  func(s *Copy) { i := first(s, isEnded); s.Blocks[i/64].Ended &^= 1 << (i % 64) },
		"free, and ended":          func(s *Copy) { i := first(s, isFree); s.Blocks[i/64].Ended |= 1 << (i % 64) },
		"index 0":                  func(s *Copy) { s.Blocks[1].Free |= 1 << 8 },
		"nobody's word":            func(s *Copy) { s.Entries[first(s, isFree)].Owner |= 1 << 32 },
		"state 10":                 func(s *Copy) { s.Entries[first(s, isHeld)].Owner |= 8 << 48 },
	} {
		s, _ := healthy()
		if spoil(&s); !slices.ContainsFunc(s.Faults(), func(fault string) bool { return strings.Contains(fault, want) }) {
			t.Errorf("%s: found %v", want, s.Faults())
		}
	}
}

// A take that reads, looks and writes instead of one atomic step gives an index to two; the ledger must see it.
func TestTheLedgerFindsAnIndexThatTwoHold(t *testing.T) {
	for _, torn := range []bool{false, true} {
		f := NewFake(1, 6)
		l := Ledger{}
		for i := range 10 {
			before := f.Blocks[1].Free
			f.Take(0, FlowFrom(2*i), 1, conntable.StateOpen)
			if torn && i == 5 { // another CPU has read the word before and writes what it made of it
				f.Blocks[1].Free = before
			}
			f.Take(0, FlowFrom(2*i+1), 1, conntable.StateOpen)
			l.Added += 2
		}
		s := Copy{f.TablePlace, f.Entries[64:128], f.Blocks[1:2]}
		if l.Owned = s.Owned(); l.Balances() == torn {
			t.Errorf("torn %t: %+v balances: %t", torn, l, l.Balances())
		}
	}
}
