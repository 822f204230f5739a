// Which clients are suspects.
package connections

import (
	"maps"
	"net/netip"
	"slices"
)

// SuspectNetworks answers as the data path would, of one service's suspects. The zero value knows of nobody.
type SuspectNetworks struct {
	lengths []int
	members map[netip.Prefix]bool
}

// NewSuspectNetworks knows of the networks.
func NewSuspectNetworks(networks []netip.Prefix) SuspectNetworks {
	members, lengths := make(map[netip.Prefix]bool, len(networks)), map[int]bool{}
	for _, network := range networks {
		members[network.Masked()] = true
		lengths[network.Bits()] = true
	}
	return SuspectNetworks{slices.Sorted(maps.Keys(lengths)), members}
}

// Contain reports whether a client is in one of the networks.
func (n SuspectNetworks) Contain(client netip.Addr) bool {
	for _, length := range n.lengths {
		if network, err := client.Prefix(length); err == nil && n.members[network] {
			return true
		}
	}
	return false
}
