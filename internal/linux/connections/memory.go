// Package connections reads and sweeps connection tables (bpf/lb/state/connections.h), in memory that packets write.
package connections

import (
	"fmt"
	"math/bits"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Connection is one entry of a table, as it was at one moment.
type Connection struct {
	Client  netip.AddrPort
	Server  uint16 // id
	State   conntable.State
	Suspect bool
	First   time.Duration // since the entry was made; of more than one packet, to 2^30 ns
	Last    time.Duration // since the last packet, to 2^20 ns
	Packets uint32        // of the client
	Bytes   uint64        // of these, IP headers included; 48 bits
	Entry   uint32        // number of the entry, of all tables
}

// Table is where a service's connections are.
type Table struct {
	plan.TablePlace
	IPv6 bool // the service's clients
}

// Memory holds the tables of all services, in memory that packets change at the same time. The rules are those of
// bpf/lb/state/connections.h. Its methods are safe for concurrent use; the ranges that they are given must be tables that packets see.
type Memory struct {
	Entries   []Entry
	Blocks    []conntable.Block
	Addresses []Address // of IPv6 clients
}

// Entry is struct connection.
type Entry struct {
	Owner   conntable.Owner
	Client  uint32 // of IPv4
	Packets uint32
	Bytes   uint64
	First   uint32
	Last    uint32
}

// Address is struct connection_address.
type Address struct{ Client [4]uint32 }

// BytesMask is of Entry.Bytes.
const BytesMask = 1<<48 - 1

// LoadOwner reads the owner of an entry that packets write.
func LoadOwner(c *Entry) conntable.Owner {
	return conntable.Owner(atomic.LoadUint64((*uint64)(&c.Owner)))
}

// SwapOwner replaces the owner, unless a packet was faster.
func SwapOwner(c *Entry, before, after conntable.Owner) bool {
	return atomic.CompareAndSwapUint64((*uint64)(&c.Owner), uint64(before), uint64(after))
}

// Units of Entry.Last and First.
const (
	LastUnit   = time.Duration(1 << 20)
	lastBits   = 32
	FirstShift = 10 // bits of last that first has not
)

// Clock is what packets write into Entry.Last.
func Clock() uint32 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		panic(err) // the clock exists since Linux 2.6.32
	}
	return uint32(now.Nano() / int64(LastUnit))
}

// since tells how long ago, of bits bits, was. What lies a little in the future came after now was asked for.
func since(now, was uint32, bits int) uint32 {
	const little = uint32(time.Minute / LastUnit)
	age := (now - was) & (1<<bits - 1)
	if age > (1<<bits-1)-little>>(lastBits-bits) {
		return 0
	}
	return age
}

// Read tells what entry number at says. It reports whether it was one connection's all the while.
func (c *Memory) Read(at uint32, t *Table, now uint32, out *Connection) bool {
	entry := &c.Entries[at]
	before := LoadOwner(entry)
	if before.State() == conntable.StateNone || !before.Known() {
		return false
	}
	c.describe(at, t, now, before, out)
	return before.Same(LoadOwner(entry))
}

// describe tells what entry number at says of a connection that is, or was, its owner's.
func (c *Memory) describe(at uint32, t *Table, now uint32, owner conntable.Owner, out *Connection) {
	entry := &c.Entries[at]
	*out = Connection{
		Client: netip.AddrPortFrom(c.client(at, t), owner.Port()), Server: owner.ID(), State: owner.State(), Suspect: owner.Suspect(),
		Packets: atomic.LoadUint32(&entry.Packets), Bytes: atomic.LoadUint64(&entry.Bytes) & BytesMask, Entry: at,
	}
	out.Last = time.Duration(since(now, atomic.LoadUint32(&entry.Last), lastBits)) * LastUnit
	out.First = out.Last
	if out.Packets > 1 {
		units := since(now>>FirstShift, atomic.LoadUint32(&entry.First), lastBits-FirstShift)
		out.First = max(out.Last, time.Duration(units)*(LastUnit<<FirstShift))
	}
}

func (c *Memory) client(at uint32, t *Table) netip.Addr {
	if !t.IPv6 {
		return wire.IPv4(atomic.LoadUint32(&c.Entries[at].Client))
	}
	var words [4]uint32
	for i := range words {
		words[i] = atomic.LoadUint32(&c.Addresses[at].Client[i])
	}
	return wire.IPv6(words)
}

// Each visits the connections in count blocks of a table, from block from on, the table's first being 0; what is beyond the table's end
// is left out. What it passes is overwritten for the next. It stops nobody: a connection that comes or goes meanwhile may be missed, and
// its state may be newer than its counters. A few ns for each entry.
func (c *Memory) Each(t Table, from, count uint32, visit func(*Connection)) {
	now, usable := Clock(), conntable.FreeMask(t.IndexBits)
	var seen Connection
	for block := from; block < min(t.Blocks, from+count); block++ {
		at := t.Base + block
		for used := c.Blocks[at].Used(usable); used != 0; used &= used - 1 {
			if c.Read(at<<conntable.BlockBits+uint32(bits.TrailingZeros64(used)), &t, now, &seen) {
				visit(&seen)
			}
		}
	}
}

// Occupancy is what the indices of a table are used for.
type Occupancy struct {
	Entries uint32 `json:"entries"` // that there are
	Free    uint32 `json:"free"`    // may be taken, and stand for nothing
	Ended   uint32 `json:"ended"`   // may be taken, and still tell of a connection that has ended
}

// Used are those that no new connection can take.
func (o Occupancy) Used() uint32 { return o.Entries - min(o.Entries, o.Free+o.Ended) }

// Occupancy counts the indices of a table, 16 bytes of memory for 64 of them.
func (c *Memory) Occupancy(t Table) (o Occupancy) {
	usable := conntable.FreeMask(t.IndexBits)
	o.Entries = t.Blocks * uint32(bits.OnesCount64(usable))
	for i := range c.Blocks[t.Base:][:t.Blocks] {
		block := &c.Blocks[t.Base+uint32(i)]
		o.Free += uint32(bits.OnesCount64(usable & atomic.LoadUint64(&block.Free)))
		o.Ended += uint32(bits.OnesCount64(usable & atomic.LoadUint64(&block.Ended)))
	}
	return o
}

// Clear makes a range of blocks, which no packet can see, an empty table. Addresses stay: nobody reads that of an entry without
// owner.
func (c *Memory) Clear(t plan.ClearTable) {
	blocks := c.Blocks[t.Base:][:t.Blocks]
	clear(c.Entries[t.Base*conntable.BlockEntries:][:t.Blocks*conntable.BlockEntries])
	for i := range blocks {
		blocks[i] = conntable.Block{Free: conntable.FreeMask(t.IndexBits)}
	}
}

// DescribeEnded tells what an entry, which is its caller's, says of a connection that has ended, and why it has.
func DescribeEnded(entry *Entry, address Address, ipv6 bool, out *Connection) (reason EndReason, err error) {
	owner := LoadOwner(entry)
	if !owner.State().Ended() {
		return 0, fmt.Errorf("it is in state %d", owner.State())
	}
	// One entry of its own is a table, too.
	lone := Memory{Entries: []Entry{*entry}, Addresses: []Address{address}}
	lone.describe(0, &Table{IPv6: ipv6}, Clock(), owner, out)
	return reasonOf(owner.State()), nil
}
