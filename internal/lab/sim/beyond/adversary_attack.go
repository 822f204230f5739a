package beyond

import (
	"math"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// flood are SYNs of addresses that nobody has, at even distances. Nobody answers the SYN-ACK.
type flood struct {
	at, end float64 // ns
	gapNS   float64
	flows   random.Stream
}

// newFlood floods from one moment to another. A rate of 0 is none.
func newFlood(seed uint64, perSecond float64, from, to int64) *flood {
	f := &flood{at: float64(from), end: float64(to), gapNS: float64(second) / perSecond, flows: random.New(seed, "flood")}
	if perSecond == 0 {
		f.at = math.Inf(1)
	}
	return f
}

func (f *flood) next() int64 {
	if f.at >= f.end {
		return math.MaxInt64
	}
	return int64(f.at)
}

func (f *flood) past() { f.at += f.gapNS }

func (f *flood) strike(c *carried) {
	c.open(f.flows.Uint64(), int64(f.at))
	f.past()
}

// bots finish their handshakes with addresses of their own, and then are silent. Those that speak send one packet more, after which the
// server is seen to use their entry.
type bots struct {
	at, end   int64
	meanGapNS float64
	speak     bool
	arrivals  random.Stream
	waiting   []bot // to speak, in order
	spoken    int   // of these
}

type bot struct {
	at    int64
	flow  uint64
	index uint16
}

func newBots(seed uint64, perSecond float64, speak bool, from, to int64) *bots {
	b := &bots{at: from, end: to, meanGapNS: float64(second) / perSecond, speak: speak, arrivals: random.New(seed, "bots")}
	if perSecond == 0 {
		b.at = to
	}
	return b
}

func (b *bots) next() int64 {
	comes := int64(math.MaxInt64)
	if b.at < b.end {
		comes = b.at
	}
	if b.spoken < len(b.waiting) {
		comes = min(comes, b.waiting[b.spoken].at)
	}
	return comes
}

func (b *bots) strike(c *carried) {
	if b.spoken < len(b.waiting) && b.waiting[b.spoken].at == b.next() {
		w := b.waiting[b.spoken]
		c.entries.packet(w.flow, w.index, w.at, false)
		if b.spoken++; b.spoken > len(b.waiting)/2 {
			b.waiting, b.spoken = b.waiting[:copy(b.waiting, b.waiting[b.spoken:])], 0
		}
		return
	}
	flow := b.arrivals.Uint64()
	_, index := c.open(flow, b.at)
	if reported := c.entries.packet(flow, index, b.at, false); reported != 0 {
		index = reported
	}
	if b.speak {
		b.waiting = append(b.waiting, bot{b.at + talkRTT, flow, index})
	}
	b.at += 1 + int64(b.arrivals.Exp(b.meanGapNS))
}

// guesses are ACKs of addresses that nobody has, at even distances, each with a cookie of random bits. One that names a server takes an entry:
// nothing tells it from the first packet after a handshake.
type guesses struct {
	flood
	cookies     random.Stream
	sent, valid int64
}

func newGuesses(seed uint64, perSecond float64, from, to int64) *guesses {
	return &guesses{flood: *newFlood(seed, perSecond, from, to), cookies: random.New(seed, "guesses")}
}

func (g *guesses) strike(c *carried) {
	now, client, keys := g.next(), clientFrom(g.flows.Uint64()), &c.talks.keys
	g.past()
	g.sent++
	forged := uint16(g.cookies.Uint64() & (1<<talkCookieBits - 1))
	_, index, id := tableLayout.Split(readCookie(forged, cookie.FlowHash(keys.cookie, client, talkPort)))
	if id >= 1 && id <= talkServers {
		g.valid++
		c.entries.packet(conntable.Hash(keys.placement.K0, keys.placement.K1, client, talkPort), index, now, false)
	}
}
