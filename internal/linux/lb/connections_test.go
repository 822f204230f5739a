package lb

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
	"github.com/ballast-lb/ballast/internal/linux/verdict"
	"github.com/ballast-lb/ballast/internal/plan"
)

// fakeTable is a table in memory that no packet sees; it begins at block 1.
type fakeTable struct {
	*Connections
	Table
}

func newFakeTable(blocks uint32, indexBits uint8) fakeTable {
	f := fakeTable{&Connections{
		entries:   make([]lbConnection, (blocks+2)*conntable.BlockEntries),
		blocks:    make([]lbConnectionBlock, blocks+2),
		addresses: make([]lbConnectionAddress, (blocks+2)*conntable.BlockEntries),
	}, Table{TablePlace: plan.TablePlace{Base: 1, Blocks: blocks, IndexBits: indexBits}}}
	for i := range blocks {
		f.blocks[f.Base+i].Free = conntable.FreeMask(indexBits)
	}
	return f
}

// take is what table_add does: an index of a block, for a connection. It returns the entry, 0: there is none.
func (f fakeTable) take(block uint32, client netip.AddrPort, id uint16, state ConnectionState) uint32 {
	at := f.Base + block
	for _, word := range []*uint64{&f.blocks[at].Free, &f.blocks[at].Ended} {
		for {
			left := atomic.LoadUint64(word)
			bit := left & -left
			if bit == 0 {
				break
			}
			if atomic.AndUint64(word, ^bit)&bit == 0 {
				continue
			}
			entry := at<<conntable.BlockBits + uint32(bits.TrailingZeros64(bit))
			f.own(entry, client, id, state)
			return entry
		}
	}
	return 0
}

func (f fakeTable) own(entry uint32, client netip.AddrPort, id uint16, state ConnectionState) {
	c := &f.entries[entry]
	generation := ownerOf(c).nobody() + 1<<56
	atomic.StoreUint64(&c.Owner.Word, uint64(ownerOf(c).nobody()))
	words := plan.WireAddress(client.Addr())
	if f.IPv6 {
		f.addresses[entry].Client = wordsOf(words)
	} else {
		atomic.StoreUint32(&c.Client, wordsOf(words)[0])
	}
	now := connectionClock()
	atomic.StoreUint32(&c.Last, now)
	atomic.StoreUint32(&c.First, now>>firstOf)
	atomic.StoreUint32(&c.Packets, 0)
	atomic.StoreUint64(&c.Bytes, 0)
	atomic.StoreUint64(&c.Owner.Word, uint64(generation|owner(state)<<ownerStateAt|owner(id)<<32|owner(wire.Port(client.Port()))))
}

// end is what table_end does.
func (f fakeTable) end(entry uint32, state ConnectionState) {
	before := ownerOf(&f.entries[entry])
	if before.state() != ConnectionNone && before.state() < ConnectionFinished &&
		swapOwner(&f.entries[entry], before, before&^ownerStateMask|owner(state)<<ownerStateAt) {
		block, bit := conntable.Bit(entry)
		atomic.OrUint64(&f.blocks[block].Ended, bit)
	}
}

func wordsOf(raw [16]byte) (words [4]uint32) {
	for i := range words {
		words[i] = uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24
	}
	return words
}

func flowFrom(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), uint16(1024+i))
}

// ago moves the last packet of an entry, and its beginning, into the past.
func (f fakeTable) ago(entry uint32, d time.Duration) {
	f.entries[entry].Last -= uint32(d / lastUnit)
	f.entries[entry].First = f.entries[entry].Last >> firstOf
}

func (f fakeTable) all() (found []Connection) {
	f.Each(f.Table, 0, f.Blocks, func(c *Connection) { found = append(found, *c) })
	return found
}

func TestTheStatesOfConnectionsAreThoseOfTheDataPath(t *testing.T) {
	spec, err := loadLb()
	if err != nil {
		t.Fatal(err)
	}
	names, err := verdict.Names(spec.Types, "connection_state")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		if want := strings.TrimPrefix(name, "connection_"); len(names) != len(ConnectionStates) || ConnectionState(i).String() != want {
			t.Errorf("state %d is %s here and %s there", i, ConnectionState(i), want)
		}
	}
}

func TestEntriesAreTheConnectionsThatHoldThem(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		f := newFakeTable(3, 4)
		f.IPv6 = ipv6
		client := flowFrom(7)
		if ipv6 {
			client = netip.MustParseAddrPort("[2001:db8:f00::7]:1031")
		}
		entry := f.take(1, client, 5, ConnectionOpen)
		f.entries[entry].Packets, f.entries[entry].Bytes = 3, 1<<63|2<<48|4500
		began := time.Now()
		f.ago(entry, 20*time.Second)
		f.own(5, flowFrom(1), 1, ConnectionOpen) // before the table
		f.take(2, flowFrom(2), 2, ConnectionNew)
		got := f.all()
		if len(got) != 2 {
			t.Fatalf("found %v", got)
		}
		c := got[0]
		late := time.Since(began)
		if c.Last < 20*time.Second-10*lastUnit || c.Last > 21*time.Second+late || c.First < c.Last || c.First > c.Last+2*time.Second+late {
			t.Errorf("ages %v, %v", c.First, c.Last)
		}
		c.First, c.Last = 0, 0
		if want := (Connection{Client: client, Server: 5, State: ConnectionOpen, Packets: 3, Bytes: 4500, Entry: entry}); c != want {
			t.Errorf("got %+v, want %+v", c, want)
		}
		if o := f.Occupancy(f.Table); o != (Occupancy{Entries: 3 * 60, Free: 3*60 - 2}) || o.Used() != 2 {
			t.Errorf("occupancy %+v", o)
		}
	}
}

func TestAnEntryThatCameAfterTheClockWasReadIsNotOld(t *testing.T) {
	for _, c := range []struct{ now, was, want uint32 }{{5, 3, 2}, {3, 5, 0}, {2, ^uint32(0), 3}, {^uint32(0), 2, 0}, {1 << 31, 0, 1 << 31}, {0, 1 << 20, -(1 << 20) & (1<<32 - 1)}} {
		if got := since(c.now, c.was, lastBits); got != c.want {
			t.Errorf("since %d at %d: %d, not %d", c.was, c.now, got, c.want)
		}
	}
	if got := since(1, 2, lastBits-firstOf); got != 0 {
		t.Errorf("a beginning in the future was %d ago", got)
	}
	if got := since(1, 1<<21, lastBits-firstOf); got != 1<<21+1 {
		t.Errorf("a beginning before the clock turned over was %d ago", got)
	}
}

func TestASweepFreesWhatTheRulesSayAndTellsWhatItWas(t *testing.T) {
	f := newFakeTable(2, 6)
	rules := &SweepRules{Ended: 5 * time.Second, New: 10 * time.Second, Idle: time.Minute}
	type want struct {
		state  ConnectionState
		silent time.Duration
		freed  string
	}
	cases := []want{
		{ConnectionNew, 9 * time.Second, ""}, {ConnectionNew, 11 * time.Second, "never-used"},
		{ConnectionOpen, 59 * time.Second, ""}, {ConnectionOpen, 61 * time.Second, "idle"},
		{ConnectionFinished, 4 * time.Second, ""}, {ConnectionFinished, 6 * time.Second, "fin"},
		{ConnectionReset, 4 * time.Second, ""}, {ConnectionReset, 6 * time.Second, "rst"},
	}
	wanted, kept := map[netip.AddrPort]string{}, Tally{}
	for i, c := range cases {
		state := min(c.state, ConnectionOpen)
		entry := f.take(0, flowFrom(i), 1, state)
		if c.state > ConnectionOpen {
			f.end(entry, c.state)
		}
		f.ago(entry, c.silent)
		if c.freed != "" {
			wanted[flowFrom(i)] = c.freed
		} else {
			kept[c.state]++
		}
	}
	told := map[netip.AddrPort]string{}
	tally := f.Sweep(f.Table, 0, f.Blocks, rules, func(c *Connection, reason EndReason) { told[c.Client] = reason.String() })
	if fmt.Sprint(told) != fmt.Sprint(wanted) || tally != kept {
		t.Errorf("told %v, wanted %v; tally %v, wanted %v", told, wanted, tally, kept)
	}
	if o := f.Occupancy(f.Table); o.Used() != 2 || o.Ended != 2 {
		t.Errorf("occupancy %+v", o)
	}
	f.Sweep(f.Table, 0, f.Blocks, &SweepRules{}, nil)
	if o := f.Occupancy(f.Table); o.Free != o.Entries {
		t.Errorf("after a sweep of everything %+v", o)
	}
	entry := f.take(0, flowFrom(0), 1, ConnectionOpen)
	if generation := ownerOf(&f.entries[entry]) >> 56; generation != 2 {
		t.Errorf("the second owner of an entry has generation %d", generation)
	}
}

func TestAnIndexThatWasTakenWhileItWasLookedAtIsNotFreed(t *testing.T) {
	f := newFakeTable(1, 6)
	entry := f.take(0, flowFrom(1), 1, ConnectionOpen)
	f.end(entry, ConnectionFinished)
	f.ago(entry, time.Hour)
	block, bit := conntable.Bit(entry)
	atomic.AndUint64(&f.blocks[block].Ended, ^bit) // a packet has taken it, and not written it yet
	if f.Sweep(f.Table, 0, 1, &SweepRules{}, nil); f.blocks[block].Free&bit != 0 {
		t.Error("an index was freed that a packet holds")
	}
	f.own(entry, flowFrom(2), 1, ConnectionNew)
	if got := f.all(); len(got) != 1 || got[0].Client != flowFrom(2) {
		t.Errorf("its new owner: %v", got)
	}
}

func TestFlagsFollowSuspects(t *testing.T) {
	f := newFakeTable(1, 6)
	for i := range 4 {
		f.take(0, flowFrom(i), 1, ConnectionOpen)
	}
	networks := NewSuspectNetworks([]netip.Prefix{netip.MustParsePrefix("203.0.0.1/32"), netip.MustParsePrefix("203.0.0.2/31"), netip.MustParsePrefix("2001:db8::/32")})
	for _, c := range []struct {
		suspect func(netip.Addr) bool
		want    []bool
	}{{networks.Contain, []bool{false, true, true, true}}, {SuspectNetworks{}.Contain, make([]bool, 4)}, {networks.Contain, []bool{false, true, true, true}}, {nil, make([]bool, 4)}} {
		f.Sweep(f.Table, 0, 1, &SweepRules{New: time.Hour, Idle: time.Hour, Ended: time.Hour, Suspect: c.suspect}, nil)
		var got []bool
		for _, connection := range f.all() {
			got = append(got, connection.Suspect)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("flags %v, wanted %v", got, c.want)
		}
	}
	if !networks.Contain(netip.MustParseAddr("2001:db8::1")) || networks.Contain(netip.MustParseAddr("2001:db9::1")) {
		t.Error("networks of IPv6 are mistaken")
	}
}

func TestIndicesThatAKilledSweeperHeldAreFoundAgain(t *testing.T) {
	f := newFakeTable(2, 6)
	live := f.take(0, flowFrom(1), 1, ConnectionOpen)
	ended := f.take(0, flowFrom(2), 1, ConnectionOpen)
	f.end(ended, ConnectionFinished)
	block, bit := conntable.Bit(ended)
	atomic.AndUint64(&f.blocks[block].Ended, ^bit) // killed here
	idle := f.take(0, flowFrom(3), 1, ConnectionOpen)
	swapOwner(&f.entries[idle], ownerOf(&f.entries[idle]), ownerOf(&f.entries[idle]).nobody()) // and here
	arriving := f.take(0, flowFrom(4), 1, ConnectionOpen)
	swapOwner(&f.entries[arriving], ownerOf(&f.entries[arriving]), ownerOf(&f.entries[arriving]).nobody())
	graces := 0
	freed, err := f.Recover([]Table{f.Table}, func() error {
		graces++
		f.own(arriving, flowFrom(5), 1, ConnectionNew) // the packet that held it has passed
		return nil
	})
	if err != nil || freed != 2 || graces != 2 {
		t.Errorf("freed %d after %d grace periods, %v", freed, graces, err)
	}
	if got := f.all(); len(got) != 2 || got[0].Entry != live || got[1].Entry != arriving {
		t.Errorf("left are %v", got)
	}
	if o := f.Occupancy(f.Table); o.Used() != 2 {
		t.Errorf("occupancy %+v", o)
	}
	if freed, err := f.Recover([]Table{f.Table}, func() error { return errors.New("nobody waits for nothing") }); freed != 0 || err != nil {
		t.Errorf("freed %d, %v", freed, err)
	}
}

// Whoever takes an index writes its own name over another's only if two hold it.
func TestNoIndexIsHeldTwiceOrLostBesideASweeper(t *testing.T) {
	const takers, rounds = 4, 4000
	f := newFakeTable(1, 6)
	holders := make([]atomic.Int32, len(f.entries))
	seed := rand.Uint64()
	var running, sweeping sync.WaitGroup
	stop := make(chan struct{})
	sweeping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				f.Sweep(f.Table, 0, 1, &SweepRules{Idle: time.Hour, New: time.Hour}, nil)
				f.all()
			}
		}
	})
	for taker := range takers {
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(taker)))
			var held []uint32
			for range rounds {
				if entry := f.take(0, flowFrom(taker), uint16(taker+1), ConnectionOpen); entry != 0 {
					if holders[entry].Add(1) != 1 {
						t.Errorf("seed %d: entry %d is held twice", seed, entry)
					}
					held = append(held, entry)
				}
				for len(held) > random.IntN(20) {
					last := len(held) - 1
					holders[held[last]].Add(-1)
					f.end(held[last], ConnectionFinished+ConnectionState(random.IntN(2)))
					held = held[:last]
				}
			}
			for _, entry := range held {
				holders[entry].Add(-1)
				f.end(entry, ConnectionReset)
			}
		})
	}
	running.Wait()
	close(stop)
	sweeping.Wait()
	f.Sweep(f.Table, 0, 1, &SweepRules{}, nil)
	if o := f.Occupancy(f.Table); o.Free != o.Entries {
		t.Errorf("seed %d: indices are lost: %+v", seed, o)
	}
}

func BenchmarkSweepOfAFullTable(b *testing.B) {
	f := newFakeTable(16384, 6)
	for block := range f.Blocks {
		for i := 0; f.take(block, flowFrom(i), 1, ConnectionOpen) != 0; i++ {
		}
	}
	rules := &SweepRules{Ended: time.Hour, New: time.Hour, Idle: time.Hour}
	b.Run("sweep", func(b *testing.B) {
		for b.Loop() {
			f.Sweep(f.Table, 0, f.Blocks, rules, nil)
		}
		b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(f.Blocks*63), "ns/entry")
	})
	b.Run("each", func(b *testing.B) {
		packets := uint64(0)
		for b.Loop() {
			f.Each(f.Table, 0, f.Blocks, func(c *Connection) { packets += uint64(c.Packets) })
		}
		b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(f.Blocks*63), "ns/entry")
	})
}

func TestAnIndexIsFreeThoughWhoIsToldPanics(t *testing.T) {
	for _, ended := range []bool{false, true} {
		f := newFakeTable(1, 6)
		entry := f.take(0, flowFrom(1), 1, ConnectionOpen)
		if ended {
			f.end(entry, ConnectionFinished)
		}
		func() {
			defer func() { recover() }()
			f.Sweep(f.Table, 0, 1, &SweepRules{}, func(c *Connection, _ EndReason) {
				if c.Client != flowFrom(1) {
					t.Errorf("told %v", c.Client)
				}
				panic("told")
			})
			t.Error("nobody was told")
		}()
		if o := f.Occupancy(f.Table); o.Free != o.Entries {
			t.Errorf("an index is lost: %+v", o)
		}
	}
}
