package lb

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/linux/connections/tabletest"
	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// tableOf is a service with a connection table of 128 entries, its defaults applied after change.
func tableOf(name string, vip netip.Addr, change func(*model.Service)) model.Service {
	return serviceOf(name, vip, func(s *model.Service) {
		s.Affinity, s.Table = model.AffinityTable, model.Table{Entries: 128}
		if change != nil {
			change(s)
		}
	})
}

// talk is a connection whose server does as its agent does: what the load balancer writes into an echo is its cookie from there on.
type talk struct {
	*world
	flow
	echo uint32
}

// talkTo is a connection to a server of the service "web", after its handshake.
func (w *world) talkTo(f flow, id uint16) *talk {
	return &talk{w, f, w.cookieFor("web", f, id, w.want.Keys.Current)}
}

// send checks what becomes of a packet of these flags and lets the server learn from it.
func (c *talk) send(flags byte, verdict lbVerdict) (result, expectation) {
	c.Helper()
	got, want := c.checkVerdict(c.frame(c.tcp(flags, timestamps(5, c.echo), []byte("data"))), verdict)
	if got.action != xdpDrop {
		c.echo = echoIn(got.frame)
	}
	return got, want
}

// echoIn is the TSecr that a server reads in a forwarded frame.
func echoIn(frame []byte) uint32 {
	ip := innermost(frame)
	header := 20
	if ip[0]>>4 == 6 {
		header = 40
	}
	_, _, echo := findTimestamp(ip[header+20 : header+int(ip[header+12]>>4)*4])
	return echo
}

// plainIn is what the echo's cookie says under the key that made it.
func (c *talk) plainIn(echo uint32) (node, index, id uint16) {
	s := service(&c.want, "web")
	plain, _ := c.plainOf(s, &refPacket{source: c.client.Addr(), sport: c.client.Port(), dport: c.service.Port()}, echo)
	return layoutOf(s).Split(plain)
}

// index is that of the entry of which the server knows; 0: of none.
func (c *talk) index() uint16 {
	_, index, _ := c.plainIn(c.echo)
	return index
}

// tableMemory is what the memory of a service's table says.
func (w *world) tableMemory(name string) (entries []connections.Entry, addresses []connections.Address, blocks []conntable.Block) {
	place := w.tables.Places()[name].Table
	t, from, end := &w.lb.tables, place.Base<<conntable.BlockBits, (place.Base+place.Blocks)<<conntable.BlockBits
	return t.connections.Entries[from:end], t.connections.Addresses[from:end], t.connections.Blocks[place.Base:][:place.Blocks]
}

// checkTable compares all entries of a service and its words of free and ended indices with the reference's.
func (w *world) checkTable(name string) {
	w.Helper()
	entries, addresses, blocks := w.tableMemory(name)
	t, s := &w.connections, service(&w.want, name)
	place := t.places[name]
	for i := range entries {
		at := place.Base*conntable.BlockEntries + uint32(i)
		want, generation := t.entries[at], generationOf(entries[i].Owner)
		if have := w.describe(s, &entries[i], addresses[i]); have != want.String() || generation != t.generations[at] {
			w.Fatalf("entry %d, generation %d: %s\nwant generation %d: %s", at, generation, have, t.generations[at], want)
		}
		block, bit := conntable.Bit(uint32(i))
		_, index := conntable.Index(uint32(i), place.IndexBits)
		free, ended := want == nil && index != 0, want != nil && want.state >= conntable.StateFinished
		if blocks[block].Free&bit != 0 != free || blocks[block].Ended&bit != 0 != ended {
			w.Fatalf("entry %d: free %016x, ended %016x: want %t, %t", at, blocks[block].Free, blocks[block].Ended, free, ended)
		}
	}
}

// age lets two seconds pass for entries that might make others wait, so that no test depends on when exactly they do.
func (w *world) age() {
	for at, e := range w.connections.entries {
		if e.state == conntable.StateNew {
			e.last -= 1 << 11
			w.lb.tables.connections.Entries[at].Last -= 1 << 11
		}
	}
}

func generationOf(o conntable.Owner) uint8 { return uint8(o >> 56) }
func checkOf(o conntable.Owner) uint16     { return uint16(o >> 16) }

// describe says what an entry says, and that what it remembers of the flow is that flow's.
func (w *world) describe(s *plan.Service, c *connections.Entry, address connections.Address) string {
	o := c.Owner
	if o.State() == conntable.StateNone {
		if o.Nobody() != o {
			return fmt.Sprintf("nobody's owner word is %016x", c.Owner)
		}
		return (*refEntry)(nil).String()
	}
	client := wire.IPv4(c.Client)
	if s.VIP.Is6() {
		client = wire.IPv6(address.Client)
	}
	e := refEntry{id: o.ID(), state: o.State(), suspect: o.Suspect(), packets: c.Packets, bytes: c.Bytes & connections.BytesMask, inWindow: uint32(c.Bytes >> 48)}
	for _, port := range s.Ports { // which of the ports it is only the hash knows
		e.connection = refConnection{s.Name, netip.AddrPortFrom(client, o.Port()), port}
		hash := w.tableHash(s, e.connection)
		if conntable.Check(hash) == checkOf(o) && (!s.VIP.Is6() || conntable.ClientWord(hash) == c.Client) {
			return e.String()
		}
	}
	return fmt.Sprintf("%s port %d, whose check is not %04x", client, o.Port(), checkOf(o))
}

func (e *refEntry) String() string {
	if e == nil {
		return "nobody's"
	}
	return fmt.Sprintf("%s to port %d, server %d, %s, suspect %t, %d packets, %d bytes, %d in the window",
		e.connection.client, e.connection.servicePort, e.id, e.state, e.suspect, e.packets, e.bytes, e.inWindow)
}

// checkClocks holds the times of an entry to those of the test.
func (w *world) checkClocks(t *testing.T, c *connections.Entry, before uint32) {
	t.Helper()
	now := connections.Clock()
	if c.Last-before > now-before || c.First != c.Last>>10 && c.First < before>>10 {
		t.Errorf("first %d, last %d: between %d and %d", c.First, c.Last, before, now)
	}
}

// flowsOfPartition are flows to a service of one port whose entries lie in one partition with that of the first.
func (w *world) flowsOfPartition(name string, count int) []flow {
	s := service(&w.want, name)
	var flows []flow
	var first uint32
	for n := 0; len(flows) < count; n++ {
		f := flowTo(s.VIP, s.Ports[0], n%40000)
		if raw := f.client.Addr().AsSlice(); n >= 40000 {
			binary.BigEndian.PutUint16(raw[len(raw)-2:], uint16(n/40000))
			address, _ := netip.AddrFromSlice(raw)
			f.client = netip.AddrPortFrom(address, f.client.Port())
		}
		base, _ := w.connections.partition(name, w.tableHash(s, refConnection{name, f.client, s.Ports[0]}))
		if len(flows) == 0 {
			first = base
		}
		if base == first {
			flows = append(flows, f)
		}
	}
	return flows
}

func (w *world) stateOfTable(name string) tabletest.Copy {
	entries, _, blocks := w.tableMemory(name)
	return tabletest.Copy{Place: w.tables.Places()[name].Table, Entries: slices.Clone(entries), Blocks: slices.Clone(blocks)}
}
