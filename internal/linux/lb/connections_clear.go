// Empty connection tables.
package lb

import (
	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/plan"
)

// clearTable makes a range of blocks, which no packet can see, an empty table. Addresses stay: nobody reads that of an entry without
// owner.
func (t *lbTables) clearTable(c plan.ClearTable) {
	blocks := t.connectionBlocks[c.Base:][:c.Blocks]
	clear(t.connections[c.Base*conntable.BlockEntries:][:c.Blocks*conntable.BlockEntries])
	for i := range blocks {
		blocks[i] = lbConnectionBlock{Free: conntable.FreeMask(c.IndexBits)}
	}
}
