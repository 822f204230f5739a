// Package conntable is the arithmetic of connection tables: Barbette et al., "Cheetah" section III-B, where a cookie of r bits is
// the index of an entry in one of m partitions, so that a table has m*2^r entries. bpf/lb/state/connections.h and bpf/lb/affinity/table.h
// compute the same; test/golden/conntable.json holds both to it.
//
// A table is a range of blocks. A block has one word of free indices, so 64 entries, whatever r is: with r < 6 several partitions
// share it. Entries are numbered from the table's beginning, or from that of any block before it. Index 0 of every partition stays
// unused, as in a cookie it says that the connection has no entry.
package conntable

// Specification constants (bpf/lb/state/connections.h).
const (
	BlockBits    = 6
	BlockEntries = 1 << BlockBits
	Assignments  = 1 << 16 // places for connections whose server does not use its index yet
)

// Layout is how a cookie's bits below the epoch are divided: from the first, NodeBits for the node of the second tier, IndexBits for
// the index (r), IDBits for the server's id. They are at most 15 together.
type Layout struct{ NodeBits, IndexBits, IDBits uint8 }

// Split takes the plain bits of a cookie (what is left of it without the epoch and the flow's hash) apart.
func (l Layout) Split(plain uint16) (node, index, id uint16) {
	return plain >> (l.IndexBits + l.IDBits) & mask(l.NodeBits), plain >> l.IDBits & mask(l.IndexBits), plain & mask(l.IDBits)
}

// Join undoes Split. What does not fit its bits is cut off.
func (l Layout) Join(node, index, id uint16) (plain uint16) {
	return (node&mask(l.NodeBits))<<(l.IndexBits+l.IDBits) | (index&mask(l.IndexBits))<<l.IDBits | id&mask(l.IDBits)
}

func mask(bits uint8) uint16 { return 1<<bits - 1 }

// Blocks returns how many blocks hold so many entries, those of index 0 included.
func Blocks(entries uint32) uint32 { return entries>>BlockBits + min(entries&(BlockEntries-1), 1) }

// Partitions returns how many partitions of 2^indexBits entries, at most 2^6, are in so many blocks.
func Partitions(blocks uint32, indexBits uint8) uint32 { return blocks << (BlockBits - indexBits) }

// PartitionOf places a flow: the high half of its hash, scaled without division (Lemire's multiply-shift).
func PartitionOf(hash uint64, partitions uint32) uint32 {
	return uint32(hash >> 32 * uint64(partitions) >> 32)
}

// Entry returns the number of the entry that an index stands for in a partition.
func Entry(partition uint32, index uint16, indexBits uint8) uint32 {
	return partition<<indexBits | uint32(index)
}

// Index undoes Entry.
func Index(entry uint32, indexBits uint8) (partition uint32, index uint16) {
	return entry >> indexBits, uint16(entry) & mask(indexBits)
}

// Bit returns the block of an entry, and its bit in the words of that block.
func Bit(entry uint32) (block uint32, bit uint64) {
	return entry >> BlockBits, 1 << (entry & (BlockEntries - 1))
}

// PartitionMask returns the bits of a partition in the words of its block, that of index 0 included.
func PartitionMask(partition uint32, indexBits uint8) uint64 {
	_, first := Bit(Entry(partition, 0, indexBits))
	return (1<<(1<<indexBits) - 1) * first
}

// FreeMask returns the free indices of a block that nobody has used yet: all but those of index 0.
func FreeMask(indexBits uint8) uint64 {
	taken := uint64(0)
	for partition := range Partitions(1, indexBits) {
		_, first := Bit(Entry(partition, 0, indexBits))
		taken |= first
	}
	return ^taken
}
