package probes

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants of ranges, whose ports take turns. Applications and firewalls may leave some of a range out, so that single ports say little.
const (
	turn    = time.Second // between two SYNs to a range
	inARow  = 3           // ports of a range whose packets are lost, until all are: as many times more as fewer of those before were taken
	askHole = 5           // turns from one of a port whose packets were lost to its next
)

// target is what gets SYNs or datagrams: a port, or a range.
type target struct {
	first netip.AddrPort
	last  uint16 // of a range; 0: it is a single port
	udp   bool
}

func (t target) protocol() string {
	if t.udp {
		return "udp"
	}
	return "tcp"
}

func (t target) packets() string {
	probed := api.ProbedPort{Protocol: t.protocol()}
	return probed.Packets()
}

// period between two probes.
func (t target) period() time.Duration {
	switch {
	case t.udp:
		return calm
	case t.last != 0:
		return turn
	}
	return period
}

// patience is how long an answer is waited for.
func (t target) patience() time.Duration {
	if t.udp {
		return longer
	}
	return patience
}

// size is how many ports there are.
func (t target) size() uint32 {
	if t.last == 0 {
		return 1
	}
	return uint32(t.last) - uint32(t.first.Port()) + 1
}

// after is the port that comes after another one of a range: far from it, and in the end all have had their turn.
func (t target) after(number uint16) uint16 {
	first, size := uint32(t.first.Port()), t.size()
	step := size * 618 / 1000
	for step == 0 || divisor(step, size) != 1 {
		step++
	}
	return uint16(first + (uint32(number)-first+step)%size)
}

// divisor is the greatest common one.
func divisor(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// walk is through the ports of a range.
type walk struct {
	at    uint16 // the port whose turn was last
	turns int
	run   int    // ports in a row whose packets were lost
	fates uint64 // of the last ports, the newest first: 1: packets were taken
	seen  int    // of fates
	blind int    // ports in a row of which nothing was seen
	hole  *hole
}

// hole is a port of a range whose packets are lost.
type hole struct {
	number uint16
	fate   server.Fate
	since  time.Time
}

// judge takes what became of a port's probe, and reports whether it counts for the whole range.
func (w *walk) judge(of target, number uint16, fate server.Fate, arrives bool, now time.Time) bool {
	known := w.hole != nil && w.hole.number == number
	if arrives {
		w.blind = 0
	}
	switch {
	case arrives && known:
		w.hole, w.run = nil, 0
	case arrives:
		w.run = 0
		w.note(1)
	case known:
		w.hole.fate = fate
	default:
		w.hole = &hole{number, fate, now}
		w.run++
		w.note(0)
	}
	return arrives || w.run >= int(min(w.enough(), of.size()))
}

// miss takes that nothing was seen of a port's datagrams, and reports whether it counts for the whole range.
func (w *walk) miss(of target, number uint16, now time.Time) bool {
	if w.hole != nil && w.hole.number == number {
		w.hole.fate = server.ProbeUnanswered
	} else {
		w.hole = &hole{number, server.ProbeUnanswered, now}
		w.blind++
	}
	return w.blind >= int(min(w.enough(), of.size()))
}

func (w *walk) note(fate uint64) {
	w.fates, w.seen = w.fates<<1|fate, min(w.seen+1, 64)
}

// enough is how many lost ports in a row say that all are lost. Where few ports of a range are taken, some follow each other at all times.
func (w *walk) enough() uint32 {
	before := w.seen - w.run
	if before <= 0 {
		return inARow
	}
	taken := bits.OnesCount64(w.fates >> w.run & (1<<before - 1))
	if taken == 0 {
		return inARow
	}
	return uint32(inARow * before / taken)
}

// next is the port of a range whose turn it is. Those that another service names are not its.
func (p *Probes) next(one *port) uint16 {
	w := &one.walk
	if w.hole != nil && p.namedElsewhere(one, w.hole.number) { // by now
		w.hole, w.run = nil, 0
	}
	if w.turns++; w.hole != nil && w.turns%askHole == 0 {
		return w.hole.number
	}
	for range one.of.size() {
		if w.at = one.of.after(w.at); !p.namedElsewhere(one, w.at) {
			break
		}
	}
	return w.at
}

// namedElsewhere reports whether another service has a port of a range, by itself or in a smaller one.
func (p *Probes) namedElsewhere(one *port, number uint16) bool {
	return slices.ContainsFunc(p.services, func(other plan.AgentService) bool {
		s := other.Service
		return s != one.service && s.Protocol == one.service.Protocol && slices.Contains(s.VIPs(), one.of.first.Addr()) &&
			(slices.Contains(s.Ports, number) || slices.ContainsFunc(s.PortRanges, func(r model.PortRange) bool {
				return r.Contains(number) && uint32(r.Last)-uint32(r.First) < one.of.size()-1
			}))
	})
}

// holes tells of ports of ranges whose packets are lost while those of others are taken.
func (p *Probes) holes(targets []target) (list []string) {
	for _, at := range targets {
		if one := p.ports[at]; one != nil && one.walk.hole != nil && one.known && one.arrives() {
			h := one.walk.hole
			lost := "are lost here, while others are taken"
			if at.udp && h.fate == server.ProbeUnanswered {
				lost = "are not seen to be taken here, while others are"
			}
			list = append(list, fmt.Sprintf("%s is not an address of this host, and since %s %s to its %s port %d, of %d to %d, %s: %s",
				at.first.Addr(), h.since.UTC().Format(time.RFC3339), at.packets(), at.protocol(), h.number, at.first.Port(), at.last, lost, at.how(h.fate)))
		}
	}
	return list
}
