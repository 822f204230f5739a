package beyond

import (
	"encoding/binary"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/lab/sim/event"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// What connections of clients who mean well say, where packets matter and not lives alone.
const (
	talkRTT        = 50 * millisecond // from the SYN to the first packet with an echo
	talkGapNS      = 2 * float64(second)
	talkServers    = 100
	talkPort       = 443
	talkCookieBits = model.DirectCookieBits
	talkEpoch      = 0
	talkVIP        = "198.51.100.10"
)

// keys are the secrets of a service.
type keys struct{ cookie, placement cookie.Key }

// newKeys draws the keys of a fleet and derives those of the service, as controllers and nodes do.
func newKeys(seed uint64) keys {
	draws := random.New(seed, "fleet keys")
	draw := func() cookie.Key {
		var fleet [16]byte
		binary.LittleEndian.PutUint64(fleet[:8], draws.Uint64())
		binary.LittleEndian.PutUint64(fleet[8:], draws.Uint64())
		return cookie.ServiceKey(fleet, netip.MustParseAddr(talkVIP), model.ProtocolTCP)
	}
	return keys{draw(), draw()}
}

// clientFrom makes an address and a port of random bits.
func clientFrom(bits uint64) netip.AddrPort {
	var address [4]byte
	binary.BigEndian.PutUint32(address[:], uint32(bits>>16))
	return netip.AddrPortFrom(netip.AddrFrom4(address), uint16(bits))
}

// everyServer are the shares of servers with the ids 1 to n, but for those that are away.
func everyServer(n int, isAway func(id uint16) bool) (shares []model.Share) {
	for id := uint16(1); id <= uint16(n); id++ {
		if isAway == nil || !isAway(id) {
			shares = append(shares, model.Share{ID: id, Weight: 1})
		}
	}
	return shares
}

// talk is a connection of a client who means well.
type talk struct {
	begun, ends int64
	marked      uint64 // hash of the flow that its cookie is made with
	placed      uint64 // hash of the flow in the connection table
	slot        uint32 // of the flow in the table of the pool
	owner       uint16 // of that slot when the connection began; 0: nobody uses this number now
}

// hearer is a load balancer that all packets come through. Connections have numbers, which are used again when they have ended.
type hearer interface {
	until(now int64) // what outsiders and its own sweeper do up to now
	syn(n uint32, now int64)
	packet(n uint32, now int64, last bool)
	fate(n uint32) fate
}

// fate is what became of a connection, as bits.
type fate uint8

const (
	lostPlace fate = 1 << iota // there was an entry, and it went while the connection lived
	wentWrong                  // a packet was sent to another server
)

// tally counts connections by their fate.
type tally struct{ all, lost, wrong int64 }

func (t *tally) add(f fate) {
	t.all++
	if f&lostPlace != 0 {
		t.lost++
	}
	if f&wentWrong != 0 {
		t.wrong++
	}
}

// talks are connections that come and go, and every packet of theirs. All load balancers hear the same.
type talks struct {
	hearers []hearer
	tallies []tally // by hearer, of connections that live at some time between judgeFrom and judgeTo
	list    []talk  // by number
	pool    []uint16
	keys    keys

	judgeFrom, judgeTo int64

	queue            *event.Queue
	unused           []uint32
	flow             uint64
	next             int64 // arrival
	meanGapNS        float64
	arrivals, packet random.Stream
	lifeOf, clientOf random.Key
	lives, remaining *random.Sampler
}

// newTalks begins with the connections that there are in equilibrium, each of which is heard of by its SYN.
func newTalks(seed uint64, connections int, pool []uint16, hearers func(*talks) []hearer) *talks {
	lives, _ := webDurations()
	scaled := lives.Scaled(float64(second))
	t := &talks{
		pool: pool, keys: newKeys(seed), queue: event.New(millisecond), meanGapNS: scaled.Mean() / float64(connections),
		arrivals: random.New(seed, "arrivals"), packet: random.New(seed, "packets"),
		lifeOf: random.Keyed(seed, "durations"), clientOf: random.Keyed(seed, "clients"),
		lives: random.NewSampler(scaled), remaining: random.NewSampler(scaled.Remaining()),
	}
	t.hearers = hearers(t)
	t.tallies = make([]tally, len(t.hearers))
	for range connections {
		t.begin(0, int64(t.remaining.At(t.lifeOf.Float64At(t.flow))))
	}
	t.next = int64(t.arrivals.Exp(t.meanGapNS))
	return t
}

// begin lets a client send a SYN, and plans its next packet.
func (t *talks) begin(now, life int64) {
	if len(t.unused) == 0 {
		t.unused = append(t.unused, uint32(len(t.list)))
		t.list = append(t.list, talk{})
	}
	n := t.unused[len(t.unused)-1]
	t.unused = t.unused[:len(t.unused)-1]
	client := clientFrom(t.clientOf.At(t.flow))
	slot := cookie.Slot(cookie.FlowHash(t.keys.placement, client, talkPort), uint32(len(t.pool)))
	t.list[n] = talk{
		begun: now, ends: now + max(life, talkRTT), slot: slot, owner: t.pool[slot],
		marked: cookie.FlowHash(t.keys.cookie, client, talkPort),
		placed: conntable.Hash(t.keys.placement.K0, t.keys.placement.K1, client, talkPort),
	}
	t.flow++
	for _, h := range t.hearers {
		h.until(now)
		h.syn(n, now)
	}
	t.queue.Push(now+talkRTT, n)
}

// runUntil lets everything happen before a time.
func (t *talks) runUntil(until int64) {
	for {
		at, n, ok := t.queue.PopBefore(min(t.next, until))
		switch {
		case ok:
			t.speak(n, at)
		case t.next < until:
			t.begin(t.next, int64(t.lives.At(t.lifeOf.Float64At(t.flow))))
			t.next += 1 + int64(t.arrivals.Exp(t.meanGapNS))
		default:
			for _, h := range t.hearers {
				h.until(until)
			}
			return
		}
	}
}

// speak lets a connection send a packet, and plans the next or ends it.
func (t *talks) speak(n uint32, now int64) {
	c := &t.list[n]
	last := now >= c.ends
	for _, h := range t.hearers {
		h.until(now)
		h.packet(n, now, last)
	}
	if last {
		t.judge(n)
		c.owner = 0
		t.unused = append(t.unused, n)
		return
	}
	t.queue.Push(min(now+1+int64(t.packet.Exp(talkGapNS)), c.ends), n)
}

// judge counts a connection that is over, or is looked at for the last time.
func (t *talks) judge(n uint32) {
	c := &t.list[n]
	if c.ends < t.judgeFrom || c.begun > t.judgeTo {
		return
	}
	for i, h := range t.hearers {
		t.tallies[i].add(h.fate(n))
	}
}

// close judges the connections that still live.
func (t *talks) close() {
	for n := range t.list {
		if t.list[n].owner != 0 {
			t.judge(uint32(n))
		}
	}
}

// rebuild makes the table of the pool what the data plane makes of its servers.
func (t *talks) rebuild(isAway func(id uint16) bool) {
	copy(t.pool, maglev.Table(uint32(len(t.pool)), everyServer(talkServers, isAway)))
}
