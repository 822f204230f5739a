// Clients whose packets visit a scrubber first.
package lb

import (
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
)

// Suspect is a client, or a network of them, whose packets to a service visit its scrubber first.
type Suspect struct {
	Service uint32 // number
	Client  netip.Prefix
}

func (s Suspect) key() (key lbSuspectKey) {
	const serviceBits = 32
	key.PrefixLength, key.Service = serviceBits+uint32(s.Client.Bits()), s.Service
	key.Client = wire.Words(s.Client.Masked().Addr())
	return key
}

// SetSuspects makes these, and no others, the clients whose next entries are suspect. For entries that are there, see SweepRules.
// An error leaves it done in part.
func (lb *LB) SetSuspects(suspects []Suspect) error {
	before, err := readMap[lbSuspectKey, uint32](lb.objects.Suspects)
	if err != nil {
		return fmt.Errorf("read suspects: %w", err)
	}
	if limit := lb.objects.Suspects.MaxEntries(); len(suspects) > int(limit) {
		return fmt.Errorf("%d suspects are too many: clear some, or name larger networks: there is room for %d", len(suspects), limit)
	}
	wanted := make(map[lbSuspectKey]bool, len(suspects))
	for _, s := range suspects {
		wanted[s.key()] = true
	}
	for key := range before {
		if !wanted[key] {
			if err := lb.objects.Suspects.Delete(key); err != nil {
				return fmt.Errorf("clear a suspect: %w", err)
			}
		}
	}
	for key := range wanted {
		if _, there := before[key]; !there {
			if err := lb.objects.Suspects.Put(key, uint32(1)); err != nil {
				return fmt.Errorf("set a suspect: %w", err)
			}
		}
	}
	return nil
}
