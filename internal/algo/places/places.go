// Package places names servers by their addresses for tables of slots, so that services with the same servers have the same tables, whatever
// ids their servers have.
package places

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/siphash"
)

// Implementation constant: never secret, and never changes, as every node must build the same table.
const key = 0x706c616365730000 // "places"

// Of returns a place for each address, in their order: not 0, all distinct. It depends on the address alone, unless one before it has the same
// place: of 100 addresses that happens to one in 14 sets.
func Of(addresses []netip.Addr) []uint16 {
	taken, places := map[uint16]bool{0: true}, make([]uint16, len(addresses))
	for i, address := range addresses {
		text := address.As16()
		place := uint16(siphash.Sum13(key, 0, text[:]))
		for taken[place] {
			place++
		}
		taken[place], places[i] = true, place
	}
	return places
}
