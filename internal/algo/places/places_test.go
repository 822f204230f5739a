package places

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPlacesAreDistinctAndOfTheAddressesAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var addresses []netip.Addr
		for range rapid.IntRange(0, 300).Draw(t, "servers") {
			if text := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address"); rapid.Bool().Draw(t, "ipv6") {
				addresses = append(addresses, netip.AddrFrom16([16]byte{0xfd, 12: text[0], text[1], text[2], text[3]}))
			} else {
				addresses = append(addresses, netip.AddrFrom4([4]byte(text)))
			}
		}
		all := Of(addresses)
		seen := map[uint16]bool{}
		for _, place := range all {
			if place == 0 || seen[place] {
				t.Fatalf("%v has 0, or a place twice", all)
			}
			seen[place] = true
		}
		for i := range addresses {
			if some := Of(addresses[:i]); !slices.Equal(some, all[:i]) {
				t.Fatalf("of the first %d it is %v, and %v of all", i, some, all[:i])
			}
		}
	})
}

// Nodes of two versions build the same table.
func TestPlacesStayWhatTheyAre(t *testing.T) {
	have := Of([]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.1")})
	if want := []uint16{45945, 33057, 38589, 45946}; !slices.Equal(have, want) {
		t.Errorf("%v, want %v", have, want)
	}
}
