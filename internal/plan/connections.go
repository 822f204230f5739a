package plan

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/model"
)

// TablePlace is where a service's connection table is; the zero value: it has none.
type TablePlace struct {
	Base, Blocks uint32 // of 64 entries
	IndexBits    uint8
}

// keepConnections says in the row what table the service has, but for where it lies.
func (row *ServiceRow) keepConnections(s *Service, tier *Tier) {
	if s.Affinity != model.AffinityTable {
		return
	}
	row.TableBlocks, row.IndexBits = conntable.Blocks(s.Table.Entries), s.Table.IndexBits
	row.PacketLimit = packetsInWindow(s.Table.PacketLimit)
	if tier.Tier == model.TierSecond {
		row.Node = tier.ID
	}
	if scrubber := s.Server(s.Table.Scrubber); scrubber != nil && !s.Down[scrubber.ID] { // without it, its suspects go to their servers
		row.Scrubber = scrubber.ID
	}
}

// packetsInWindow is a limit in packets per second, at most model.MaxPacketLimit, for windows of 2^30 ns, rounded up.
func packetsInWindow(perSecond uint32) uint16 {
	const second = 1_000_000_000
	return uint16((uint64(perSecond)<<30 + second - 1) / second)
}

// publishConnections gives the service an empty table where it had none of this shape. Whatever else changes, entries stay.
func (u *update) publishConnections(p *published, img image) error {
	t := u.tables
	if p.connections.count == img.row.TableBlocks && p.image.row.IndexBits == img.row.IndexBits {
		return nil
	}
	to, err := t.blocks.take(img.row.TableBlocks)
	if err != nil {
		return fmt.Errorf("no room for %d table entries beside those in use: raise the limit (ballast lb --max-entries) or use fewer",
			uint64(img.row.TableBlocks)*conntable.BlockEntries)
	}
	t.blocks.give(p.connections)
	p.connections = to
	if to.count > 0 {
		u.add(ClearTable{to.base, to.count, img.row.IndexBits})
	}
	return nil
}
