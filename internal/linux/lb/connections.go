// Connection tables: entries and their states, as packets write them.
package lb

import (
	"math/bits"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
	"github.com/ballast-lb/ballast/internal/plan"
)

// ConnectionState is how far a connection is, as its client's packets tell: enum connection_state.
type ConnectionState uint8

// States. FIN and RST are those of the client.
const (
	ConnectionNone     = ConnectionState(lbConnectionStateCONNECTION_NONE) // no connection
	ConnectionNew      = ConnectionState(lbConnectionStateCONNECTION_NEW)
	ConnectionOpen     = ConnectionState(lbConnectionStateCONNECTION_OPEN)
	ConnectionFinished = ConnectionState(lbConnectionStateCONNECTION_FINISHED)
	ConnectionReset    = ConnectionState(lbConnectionStateCONNECTION_RESET)
	connectionStates   = ConnectionReset + 1
)

// ConnectionStates are the names of the states.
var ConnectionStates = [connectionStates]string{"none", "new", "open", "finished", "reset"}

func (s ConnectionState) String() string { return ConnectionStates[s] }

// Connection is one entry of a table, as it was at one moment.
type Connection struct {
	Client  netip.AddrPort
	Server  uint16 // id
	State   ConnectionState
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

// Connections are the tables of all services, in memory that packets change at the same time. The rules are those of
// bpf/state/connections.h. Its methods are safe for concurrent use; the ranges that they are given must be tables that packets see.
type Connections struct {
	entries   []lbConnection
	blocks    []lbConnectionBlock
	addresses []lbConnectionAddress // of IPv6 clients
}

// Connections returns the tables of this load balancer.
func (lb *LB) Connections() *Connections {
	return &Connections{lb.tables.connections, lb.tables.connectionBlocks, lb.tables.connectionAddresses}
}

// owner is union connection_owner.
type owner uint64

const (
	ownerStateAt    = 48
	ownerStateMask  = owner(15) << ownerStateAt
	ownerSuspect    = owner(lbConnectionFlagCONNECTION_SUSPECT) << 52
	ownerGeneration = owner(0xff) << 56

	connectionBytes = 1<<48 - 1 // of lbConnection.Bytes
)

func (o owner) state() ConnectionState { return ConnectionState(o & ownerStateMask >> ownerStateAt) }
func (o owner) id() uint16             { return uint16(o >> 32) }
func (o owner) port() uint16           { return wire.Port(uint16(o)) }
func (o owner) suspect() bool          { return o&ownerSuspect != 0 }

// nobody is what is left when a connection gives its index up: the next one gets another generation.
func (o owner) nobody() owner { return o & ownerGeneration }

func ownerOf(c *lbConnection) owner { return owner(atomic.LoadUint64(&c.Owner.Word)) }

func swapOwner(c *lbConnection, before, after owner) bool {
	return atomic.CompareAndSwapUint64(&c.Owner.Word, uint64(before), uint64(after))
}

// Units of lbConnection.Last and First.
const (
	lastUnit = time.Duration(1 << 20)
	lastBits = 32
	firstOf  = 10 // bits of last that first has not
)

// connectionClock is what packets write into lbConnection.Last.
func connectionClock() uint32 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		panic(err) // the clock exists since Linux 2.6.32
	}
	return uint32(now.Nano() / int64(lastUnit))
}

// since tells how long ago, of bits bits, was. What lies a little in the future came after now was asked for.
func since(now, was uint32, bits int) uint32 {
	const little = uint32(time.Minute / lastUnit)
	age := (now - was) & (1<<bits - 1)
	if age > (1<<bits-1)-little>>(lastBits-bits) {
		return 0
	}
	return age
}

// read tells what entry number at says. It reports whether it was one connection's all the while.
func (c *Connections) read(at uint32, t *Table, now uint32, out *Connection) bool {
	entry := &c.entries[at]
	before := ownerOf(entry)
	if before.state() == ConnectionNone || before.state() >= connectionStates {
		return false
	}
	c.describe(at, t, now, before, out)
	return (before^ownerOf(entry))&^(ownerStateMask|ownerSuspect) == 0
}

// describe tells what entry number at says of a connection that is, or was, its owner's.
func (c *Connections) describe(at uint32, t *Table, now uint32, owner owner, out *Connection) {
	entry := &c.entries[at]
	*out = Connection{
		Client: netip.AddrPortFrom(c.client(at, t), owner.port()), Server: owner.id(), State: owner.state(), Suspect: owner.suspect(),
		Packets: atomic.LoadUint32(&entry.Packets), Bytes: atomic.LoadUint64(&entry.Bytes) & connectionBytes, Entry: at,
	}
	out.Last = time.Duration(since(now, atomic.LoadUint32(&entry.Last), lastBits)) * lastUnit
	out.First = out.Last
	if out.Packets > 1 {
		units := since(now>>firstOf, atomic.LoadUint32(&entry.First), lastBits-firstOf)
		out.First = max(out.Last, time.Duration(units)*(lastUnit<<firstOf))
	}
}

func (c *Connections) client(at uint32, t *Table) netip.Addr {
	if !t.IPv6 {
		return wire.IPv4(atomic.LoadUint32(&c.entries[at].Client))
	}
	var words [4]uint32
	for i := range words {
		words[i] = atomic.LoadUint32(&c.addresses[at].Client[i])
	}
	return wire.IPv6(words)
}

// Each visits the connections in count blocks of a table, from block from on, the table's first being 0; what is beyond the table's end
// is left out. What it passes is overwritten for the next. It stops nobody: a connection that comes or goes meanwhile may be missed, and
// its state may be newer than its counters. A few ns for each entry.
func (c *Connections) Each(t Table, from, count uint32, visit func(*Connection)) {
	now, usable := connectionClock(), conntable.FreeMask(t.IndexBits)
	var seen Connection
	for block := from; block < min(t.Blocks, from+count); block++ {
		at := t.Base + block
		for used := usable &^ atomic.LoadUint64(&c.blocks[at].Free); used != 0; used &= used - 1 {
			if c.read(at<<conntable.BlockBits+uint32(bits.TrailingZeros64(used)), &t, now, &seen) {
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
func (c *Connections) Occupancy(t Table) (o Occupancy) {
	usable := conntable.FreeMask(t.IndexBits)
	o.Entries = t.Blocks * uint32(bits.OnesCount64(usable))
	for i := range c.blocks[t.Base:][:t.Blocks] {
		block := &c.blocks[t.Base+uint32(i)]
		o.Free += uint32(bits.OnesCount64(usable & atomic.LoadUint64(&block.Free)))
		o.Ended += uint32(bits.OnesCount64(usable & atomic.LoadUint64(&block.Ended)))
	}
	return o
}
