package connections_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/linux/connections/tabletest"
)

func TestEntriesAreTheConnectionsThatHoldThem(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		f := tabletest.NewFake(3, 4)
		f.IPv6 = ipv6
		client := tabletest.FlowFrom(7)
		if ipv6 {
			client = netip.MustParseAddrPort("[2001:db8:f00::7]:1031")
		}
		entry := f.Take(1, client, 5, conntable.StateOpen)
		f.Entries[entry].Packets, f.Entries[entry].Bytes = 3, 1<<63|2<<48|4500
		began := time.Now()
		f.Ago(entry, 20*time.Second)
		f.Own(5, tabletest.FlowFrom(1), 1, conntable.StateOpen) // before the table
		f.Take(2, tabletest.FlowFrom(2), 2, conntable.StateNew)
		got := f.All()
		if len(got) != 2 {
			t.Fatalf("found %v", got)
		}
		c := got[0]
		late := time.Since(began)
		if c.Last < 20*time.Second-10*connections.LastUnit || c.Last > 21*time.Second+late || c.First < c.Last || c.First > c.Last+2*time.Second+late {
			t.Errorf("ages %v, %v", c.First, c.Last)
		}
		c.First, c.Last = 0, 0
		if want := (connections.Connection{Client: client, Server: 5, State: conntable.StateOpen, Packets: 3, Bytes: 4500, Entry: entry}); c != want {
			t.Errorf("got %+v, want %+v", c, want)
		}
		if o := f.Occupancy(f.Table); o != (connections.Occupancy{Entries: 3 * 60, Free: 3*60 - 2}) || o.Used() != 2 {
			t.Errorf("occupancy %+v", o)
		}
	}
}

func TestASweepFreesWhatTheRulesSayAndTellsWhatItWas(t *testing.T) {
	f := tabletest.NewFake(2, 6)
	rules := &connections.SweepRules{Limits: conntable.Limits{Ended: 5 * time.Second, New: 10 * time.Second, Idle: time.Minute}}
	type want struct {
		state  conntable.State
		silent time.Duration
		freed  string
	}
	cases := []want{
		{conntable.StateNew, 9 * time.Second, ""}, {conntable.StateNew, 11 * time.Second, "never-used"},
		{conntable.StateOpen, 59 * time.Second, ""}, {conntable.StateOpen, 61 * time.Second, "idle"},
		{conntable.StateFinished, 4 * time.Second, ""}, {conntable.StateFinished, 6 * time.Second, "fin"},
		{conntable.StateReset, 4 * time.Second, ""}, {conntable.StateReset, 6 * time.Second, "rst"},
	}
	wanted, kept := map[netip.AddrPort]string{}, connections.Tally{}
	for i, c := range cases {
		state := min(c.state, conntable.StateOpen)
		entry := f.Take(0, tabletest.FlowFrom(i), 1, state)
		if c.state > conntable.StateOpen {
			f.End(entry, c.state)
		}
		f.Ago(entry, c.silent)
		if c.freed != "" {
			wanted[tabletest.FlowFrom(i)] = c.freed
		} else {
			kept[c.state]++
		}
	}
	told := map[netip.AddrPort]string{}
	tally := f.Sweep(f.Table, 0, f.Table.Blocks, rules, func(c *connections.Connection, reason connections.EndReason) { told[c.Client] = reason.String() })
	if fmt.Sprint(told) != fmt.Sprint(wanted) || tally != kept {
		t.Errorf("told %v, wanted %v; tally %v, wanted %v", told, wanted, tally, kept)
	}
	if o := f.Occupancy(f.Table); o.Used() != 2 || o.Ended != 2 {
		t.Errorf("occupancy %+v", o)
	}
	f.Sweep(f.Table, 0, f.Table.Blocks, &connections.SweepRules{}, nil)
	if o := f.Occupancy(f.Table); o.Free != o.Entries {
		t.Errorf("after a sweep of everything %+v", o)
	}
	entry := f.Take(0, tabletest.FlowFrom(0), 1, conntable.StateOpen)
	if generation := connections.LoadOwner(&f.Entries[entry]) >> 56; generation != 2 {
		t.Errorf("the second owner of an entry has generation %d", generation)
	}
}

func TestAnIndexThatWasTakenWhileItWasLookedAtIsNotFreed(t *testing.T) {
	f := tabletest.NewFake(1, 6)
	entry := f.Take(0, tabletest.FlowFrom(1), 1, conntable.StateOpen)
	f.End(entry, conntable.StateFinished)
	f.Ago(entry, time.Hour)
	block, bit := conntable.Bit(entry)
	atomic.AndUint64(&f.Blocks[block].Ended, ^bit) // a packet has taken it, and not written it yet
	if f.Sweep(f.Table, 0, 1, &connections.SweepRules{}, nil); f.Blocks[block].Free&bit != 0 {
		t.Error("an index was freed that a packet holds")
	}
	f.Own(entry, tabletest.FlowFrom(2), 1, conntable.StateNew)
	if got := f.All(); len(got) != 1 || got[0].Client != tabletest.FlowFrom(2) {
		t.Errorf("its new owner: %v", got)
	}
}

func TestFlagsFollowSuspects(t *testing.T) {
	f := tabletest.NewFake(1, 6)
	for i := range 4 {
		f.Take(0, tabletest.FlowFrom(i), 1, conntable.StateOpen)
	}
	networks := connections.NewSuspectNetworks([]netip.Prefix{netip.MustParsePrefix("203.0.0.1/32"), netip.MustParsePrefix("203.0.0.2/31"), netip.MustParsePrefix("2001:db8::/32")})
	for _, c := range []struct {
		suspect func(netip.Addr) bool
		want    []bool
	}{{networks.Contain, []bool{false, true, true, true}}, {connections.SuspectNetworks{}.Contain, make([]bool, 4)}, {networks.Contain, []bool{false, true, true, true}}, {nil, make([]bool, 4)}} {
		f.Sweep(f.Table, 0, 1, &connections.SweepRules{Limits: conntable.Limits{New: time.Hour, Idle: time.Hour, Ended: time.Hour}, Suspect: c.suspect}, nil)
		var got []bool
		for _, connection := range f.All() {
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
	f := tabletest.NewFake(2, 6)
	live := f.Take(0, tabletest.FlowFrom(1), 1, conntable.StateOpen)
	ended := f.Take(0, tabletest.FlowFrom(2), 1, conntable.StateOpen)
	f.End(ended, conntable.StateFinished)
	block, bit := conntable.Bit(ended)
	atomic.AndUint64(&f.Blocks[block].Ended, ^bit) // killed here
	idle := f.Take(0, tabletest.FlowFrom(3), 1, conntable.StateOpen)
	connections.SwapOwner(&f.Entries[idle], connections.LoadOwner(&f.Entries[idle]), connections.LoadOwner(&f.Entries[idle]).Nobody()) // and here
	arriving := f.Take(0, tabletest.FlowFrom(4), 1, conntable.StateOpen)
	connections.SwapOwner(&f.Entries[arriving], connections.LoadOwner(&f.Entries[arriving]), connections.LoadOwner(&f.Entries[arriving]).Nobody())
	graces := 0
	freed, err := f.Recover([]connections.Table{f.Table}, func() error {
		graces++
		f.Own(arriving, tabletest.FlowFrom(5), 1, conntable.StateNew) // the packet that held it has passed
		return nil
	})
	if err != nil || freed != 2 || graces != 2 {
		t.Errorf("freed %d after %d grace periods, %v", freed, graces, err)
	}
	if got := f.All(); len(got) != 2 || got[0].Entry != live || got[1].Entry != arriving {
		t.Errorf("left are %v", got)
	}
	if o := f.Occupancy(f.Table); o.Used() != 2 {
		t.Errorf("occupancy %+v", o)
	}
	if freed, err := f.Recover([]connections.Table{f.Table}, func() error { return errors.New("nobody waits for nothing") }); freed != 0 || err != nil {
		t.Errorf("freed %d, %v", freed, err)
	}
}

// Whoever takes an index writes its own name over another's only if two hold it.
func TestNoIndexIsHeldTwiceOrLostBesideASweeper(t *testing.T) {
	const takers, rounds = 4, 4000
	f := tabletest.NewFake(1, 6)
	holders := make([]atomic.Int32, len(f.Entries))
	seed := rand.Uint64()
	var running, sweeping sync.WaitGroup
	stop := make(chan struct{})
	sweeping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				f.Sweep(f.Table, 0, 1, &connections.SweepRules{Limits: conntable.Limits{Idle: time.Hour, New: time.Hour}}, nil)
				f.All()
			}
		}
	})
	for taker := range takers {
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(taker)))
			var held []uint32
			for range rounds {
				if entry := f.Take(0, tabletest.FlowFrom(taker), uint16(taker+1), conntable.StateOpen); entry != 0 {
					if holders[entry].Add(1) != 1 {
						t.Errorf("seed %d: entry %d is held twice", seed, entry)
					}
					held = append(held, entry)
				}
				for len(held) > random.IntN(20) {
					last := len(held) - 1
					holders[held[last]].Add(-1)
					f.End(held[last], conntable.StateFinished+conntable.State(random.IntN(2)))
					held = held[:last]
				}
			}
			for _, entry := range held {
				holders[entry].Add(-1)
				f.End(entry, conntable.StateReset)
			}
		})
	}
	running.Wait()
	close(stop)
	sweeping.Wait()
	f.Sweep(f.Table, 0, 1, &connections.SweepRules{}, nil)
	if o := f.Occupancy(f.Table); o.Free != o.Entries {
		t.Errorf("seed %d: indices are lost: %+v", seed, o)
	}
}

func BenchmarkSweepOfAFullTable(b *testing.B) {
	f := tabletest.NewFake(16384, 6)
	for block := range f.Table.Blocks {
		for i := 0; f.Take(block, tabletest.FlowFrom(i), 1, conntable.StateOpen) != 0; i++ {
		}
	}
	rules := &connections.SweepRules{Limits: conntable.Limits{Ended: time.Hour, New: time.Hour, Idle: time.Hour}}
	b.Run("sweep", func(b *testing.B) {
		for b.Loop() {
			f.Sweep(f.Table, 0, f.Table.Blocks, rules, nil)
		}
		b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(f.Table.Blocks*63), "ns/entry")
	})
	b.Run("each", func(b *testing.B) {
		packets := uint64(0)
		for b.Loop() {
			f.Each(f.Table, 0, f.Table.Blocks, func(c *connections.Connection) { packets += uint64(c.Packets) })
		}
		b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(f.Table.Blocks*63), "ns/entry")
	})
}

func TestAnIndexIsFreeThoughWhoIsToldPanics(t *testing.T) {
	for _, ended := range []bool{false, true} {
		f := tabletest.NewFake(1, 6)
		entry := f.Take(0, tabletest.FlowFrom(1), 1, conntable.StateOpen)
		if ended {
			f.End(entry, conntable.StateFinished)
		}
		func() {
			defer func() { recover() }()
			f.Sweep(f.Table, 0, 1, &connections.SweepRules{}, func(c *connections.Connection, _ connections.EndReason) {
				if c.Client != tabletest.FlowFrom(1) {
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
