// The sweep through all tables, a part at a time.
package sweeper

import (
	"cmp"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
)

// Implementation constants of the sweep: all tables are gone through in conntable.SweepRound, or a fourth of the shortest idle timeout, unless
// that would take more than sweepShare of a CPU.
const (
	sweepPeriod = 50 * time.Millisecond
	sweepShare  = 50 // 1/50: 2 % of a CPU
	sweepChunk  = 16 // blocks between two looks at the clock
	flushPeriod = time.Second
)

// sweep is how far it has come.
type sweep struct {
	at      time.Time // when the last part was swept
	flushed time.Time // when packets that wait were last counted
	service string    // that it has come to
	block   uint32    // and the first block that it has not seen
	part    connections.Tally
}

// sweepPart goes on with the sweep.
func (h held) sweepPart(now time.Time) {
	s, elapsed := &h.sweep, min(now.Sub(h.sweep.at), time.Second)
	s.at = now
	if len(h.tables) == 0 || h.now.Incomplete || elapsed <= 0 {
		return
	}
	if now.Sub(s.flushed) >= flushPeriod { // so that no record of what has ended lacks its last packets
		s.flushed = now
		h.flushCounts()
	}
	end := time.Now().Add(elapsed / sweepShare)
	for left := partOf(h.tables, elapsed); left > 0 && time.Now().Before(end); {
		part := min(left, sweepChunk)
		left -= part
		s.next(h.tables, part, h.sweepBlocks)
	}
}

// partOf is how many blocks have to be swept in a time, so that a round takes as long as it shall.
func partOf(tables []*table, elapsed time.Duration) uint32 {
	blocks, round := uint64(0), conntable.SweepRound
	for _, t := range tables {
		blocks += uint64(t.Blocks)
		round = min(round, t.rules.Idle/4)
	}
	return uint32(min(blocks, blocks*uint64(elapsed)/uint64(max(round, sweepPeriod))+1))
}

// next sweeps the next so many blocks, or those up to the end of a table. A table that is another one than when its last part was swept is
// begun anew.
func (s *sweep) next(tables []*table, blocks uint32, sweep func(t *table, from, blocks uint32) connections.Tally) {
	at, found := slices.BinarySearchFunc(tables, s.service, func(t *table, name string) int { return cmp.Compare(t.service, name) })
	t := tables[at%len(tables)]
	if moved := t.counts.place != t.TablePlace; moved || !found {
		if moved {
			t.counts.place, t.counts.tally = t.TablePlace, connections.Tally{}
		}
		s.service, s.block, s.part = t.service, 0, connections.Tally{}
	}
	s.part.Add(sweep(t, s.block, blocks))
	if s.block += blocks; s.block >= t.Blocks {
		t.counts.tally = s.part
		t.counts.rounds++
		s.service, s.block, s.part = tables[(at+1)%len(tables)].service, 0, connections.Tally{}
	}
}

// sweepBlocks sweeps a part of a table, and logs whom it took entries from.
func (h held) sweepBlocks(t *table, from, blocks uint32) connections.Tally {
	return h.path.Connections().Sweep(t.Table, from, blocks, &t.rules, func(ended *connections.Connection, reason connections.EndReason) {
		t.counts.ended[reason]++
		h.Flows.Add(t.service, t.servers[ended.Server], ended, reason, false)
	})
}

// sweepNow sweeps a service's table at once: what its entries say of suspects is what the list says.
func (k *Sweeper) sweepNow(service string) {
	for block, there := uint32(0), true; there; block += lookChunk {
		k.hold(func(h held) {
			t, err := h.tableOf(service)
			if there = err == nil && !h.now.Incomplete && block < t.Blocks; there {
				h.sweepBlocks(t, block, lookChunk)
			}
		})
	}
}
