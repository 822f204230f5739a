package server_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

// A turner is a living connection whose cookie the test turns: with segments that only the agent sees, and not the server's kernel.
type turner struct {
	*rig
	w    *watcher
	port int
	vip  netip.Addr
	conn net.Conn
	sent []turned // in order
}

// turned is one timestamp that the server sent, and what it is restored to.
type turned struct{ wire, kernel uint32 }

func newTurner(r *rig, w *watcher, port int, vip netip.Addr) *turner {
	c := &turner{rig: r, w: w, port: port, vip: vip, conn: r.dialFrom(port, vip)}
	r.t.Cleanup(func() { c.conn.Close() })
	c.await(0)
	return c
}

func (c *turner) bits() uint8 { return c.fleet.Service(c.vip.String()).CookieBits }

// tell lets the agent see an echo. What it restores it to, or the echo itself.
func (c *turner) tell(options []byte) []byte {
	c.t.Helper()
	_, program, _ := c.agent.Programs()
	frame := questionWith(c.t, clientOf(c.port, c.vip), c.vip, options)
	out := make([]byte, len(frame)+64)
	run := ebpf.RunOptions{Data: frame, DataOut: out}
	progtest.Check(c.t, c.server.Do(func() error { _, err := program.Run(&run); return err }))
	_, _, tcp := segment(out)
	if segment := tcp[:len(tcp)+len("some payload")]; tcpChecksum(clientOf(c.port, c.vip).Addr(), c.vip, segment) != 0 {
		c.t.Errorf("options %x: the checksum is wrong", options)
	}
	return tcp[20:]
}

func (c *turner) echo(wire uint32) (restored uint32) {
	c.t.Helper()
	option := c.tell(append([]byte{1, 1, 8, 10, 0, 0, 0, 7}, binary.BigEndian.AppendUint32(nil, wire)...))
	return binary.BigEndian.Uint32(option[8:])
}

// rewrite is what a load balancer makes of an echo.
func (c *turner) rewrite(wire uint32, tag uint16) uint32 {
	service := c.fleet.Service(c.vip.String())
	for epoch, key := range c.fleet.Keys.Cookie {
		if epoch&1 == cookie.EpochBit(service.CookieBits, wire) {
			hash := cookie.FlowHash(cookie.ServiceKey(key, c.vip, service.Protocol), clientOf(c.port, c.vip), servicePort)
			fresh := cookie.Encode(service.CookieBits, epoch, service.Servers[0].ID|tag<<service.IDBits(), hash)
			return wire>>service.CookieBits<<service.CookieBits | uint32(fresh)
		}
	}
	c.t.Fatalf("no key for %#x", wire)
	return 0
}

// turn rewrites the client's packets until the server's carry the tag.
func (c *turner) turn(tag uint16) {
	c.t.Helper()
	c.rig.await("a tag", func() bool {
		c.echo(c.rewrite(c.last(), tag))
		c.talk()
		c.note()
		return c.w.tag(c.port, c.vip) == tag
	})
	c.await(tag)
}

// await talks until the server's packets carry a tag under the current key, and notes the last of them.
func (c *turner) await(tag uint16) {
	c.t.Helper()
	c.rig.await("a tag", func() bool {
		c.talk()
		last, _ := c.w.flows.Load(clientOf(c.port, c.vip))
		seen, ok := last.(lastSeen)
		return ok && seen.flags&2 == 0 && seen.tag == tag && cookie.EpochBit(c.bits(), seen.value) == c.fleet.Keys.Current&1
	})
	c.note()
}

func (c *turner) talk() {
	c.t.Helper()
	progtest.Check(c.t, fetch(c.conn, 100))
}

// note remembers the last timestamp that came, the first time that it is seen.
func (c *turner) note() {
	last, ok := c.w.flows.Load(clientOf(c.port, c.vip))
	if wire := last.(lastSeen).value; ok && (len(c.sent) == 0 || c.last() != wire) {
		c.sent = append(c.sent, turned{wire, c.echo(wire)})
	}
}

func (c *turner) last() uint32 { return c.sent[len(c.sent)-1].wire }

// verify checks that every timestamp is still restored to what it was, and that these differ as the wire's do.
func (c *turner) verify() {
	c.t.Helper()
	bits := c.bits()
	for i, sent := range c.sent {
		if now := c.echo(sent.wire); now != sent.kernel {
			c.t.Errorf("%d turns later %#x is restored to %#x, before to %#x", len(c.sent)-1-i, sent.wire, now, sent.kernel)
		}
		if wire, kernel := (c.last()>>bits-sent.wire>>bits)<<bits, (c.sent[len(c.sent)-1].kernel-sent.kernel)<<bits; wire != kernel {
			c.t.Errorf("%#x is %d ms old on the wire, and restored %d ms", sent.wire, wire>>bits, kernel>>bits)
		}
	}
}

// questionWith is a segment from a client to a service with these bytes as its options, padded to whole words.
func questionWith(t testing.TB, client netip.AddrPort, vip netip.Addr, options []byte) []byte {
	ethertype := layers.EthernetTypeIPv4
	if vip.Is6() {
		ethertype = layers.EthernetTypeIPv6
	}
	header := make([]byte, 20, 60)
	binary.BigEndian.PutUint16(header, client.Port())
	binary.BigEndian.PutUint16(header[2:], servicePort)
	header = append(header, options...)
	for len(header)%4 != 0 {
		header = append(header, 0)
	}
	header[12], header[13] = byte(len(header)/4)<<4, 0x10
	segment := append(header, "some payload"...)
	binary.BigEndian.PutUint16(segment[16:], tcpChecksum(client.Addr(), vip, segment))
	eth := &layers.Ethernet{SrcMAC: balancerMAC, DstMAC: make([]byte, 6), EthernetType: ethertype}
	return build(t, eth, ipLayer(client.Addr(), vip, layers.IPProtocolTCP, 0), gopacket.Payload(segment))
}

func TestTagsFollowOneAnotherAndLateEchoesChangeNothing(t *testing.T) {
	r := newRig(t, rigOptions{table: true})
	r.listen(false)
	r.fleet.Keys.Cookie[2] = [16]byte{9, 9, 9}
	before, w := r.rejects(), r.watch()
	for i, vip := range r.vips {
		c := newTurner(r, w, firstPort+i, vip)
		first := c.last()
		for _, tag := range []uint16{5, 63, 5, 63, 1, 2, 3} { // back to the one before, too
			c.turn(tag)
			for _, sent := range c.sent { // of this tag, of the one before, of earlier ones that come late
				c.echo(sent.wire)
			}
			c.echo(first)
			c.await(tag)
		}
		r.fleet.Keys.Current = 3 - r.fleet.Keys.Current
		r.publish()
		old := c.last()
		c.await(3)                 // a rotation keeps the tag
		c.echo(c.rewrite(old, 40)) // sent before the rotation
		c.await(3)
		c.turn(40)
		c.verify()
	}
	r.verify(w, before)
	r.expectRestored("turns")
}

func TestTagsOfForgersAreNotAdopted(t *testing.T) {
	for _, table := range []bool{true, false} {
		r := newRig(t, rigOptions{table: table})
		r.listen(false)
		w := r.watch()
		for i, vip := range r.vips {
			c := newTurner(r, w, firstPort+i, vip)
			foreign := []uint32{1, 1 << 6, 1 << 13} // of the id, its highest, of the epoch
			if !table {
				foreign = append(foreign, 1<<7, 1<<12)
			}
			for _, bits := range foreign {
				if wire := c.last() ^ bits; c.echo(wire) != wire {
					t.Errorf("%s, table %t: %#x was taken for an echo of %#x", vip, table, wire, c.last())
				}
			}
			if n := r.count("ingress_bad_cookie"); n != uint64((i+1)*len(foreign)) {
				t.Errorf("%s, table %t: %d bad cookies, want %d", vip, table, n, (i+1)*len(foreign))
			}
			c.await(0)
		}
		w.verify(t)
	}
}

func TestTagsAreReadInEveryOrderOfOptions(t *testing.T) {
	r := newRig(t, rigOptions{table: true})
	r.listen(false)
	w := r.watch()
	for i, vip := range r.vips {
		c := newTurner(r, w, firstPort+i, vip)
		for tag, before := range [][]byte{0: {1, 1}, 1: {1}, 2: {}, 3: bytes.Join([][]byte{nop, nop, sack}, nil)} {
			tag := uint16(tag + 1)
			want, wire := c.echo(c.last()), c.rewrite(c.last(), tag)
			options := append(append(before, 8, 10, 0, 0, 0, 7), binary.BigEndian.AppendUint32(nil, wire)...)
			if got := binary.BigEndian.Uint32(c.tell(options)[len(options)-4:]); got != want {
				t.Errorf("%s, options %x: restored to %#x, want %#x", vip, options, got, want)
			}
			c.await(tag)
		}
	}
	w.verify(t)
}

// Whatever load balancers put in, in whatever order it arrives, and whatever keys do meanwhile.
func TestRandomTurnsAreRestoredExactly(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BALLAST_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("BALLAST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, rigOptions{table: true, bits: []uint8{14, 15, 16}[random.IntN(3)]})
	r.listen(false)
	r.fleet.Keys.Cookie[2] = [16]byte{9, 9, 9}
	before, w := r.rejects(), r.watch()
	for i := range 6 {
		c := newTurner(r, w, firstPort+i, r.vips[i%2])
		for range 150 {
			any := c.sent[random.IntN(len(c.sent))].wire
			switch random.IntN(8) {
			case 0:
				r.fleet.Keys.Current = 1 + random.Uint32N(2)
				r.publish()
			case 1, 2:
				c.echo(c.rewrite(any, uint16(random.IntN(63))))
			case 3, 4:
				c.echo(c.rewrite(c.last(), uint16(random.IntN(63))))
			case 5:
				c.echo(any)
			default:
				c.talk()
				c.note()
			}
		}
		c.turn(63) // nobody has asked for it before
		c.verify()
	}
	r.verify(w, before)
	r.expectRestored("random")
}
