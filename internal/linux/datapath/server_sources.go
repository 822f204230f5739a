// Who may open tunnels to a server's services.
package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/plan"
)

// SetTunnelSources makes tunnels from other addresses than these be dropped. None: those of anybody are taken. A source that stays is known
// at every moment.
func (s *Server) SetTunnelSources(addresses []netip.Addr) error {
	want := make(map[[16]byte]uint32, len(addresses))
	places := make([]serverTunnelPlace, s.objects.TunnelPlaces.MaxEntries())
	for _, address := range addresses {
		wire := plan.WireAddress(address)
		want[wire] = 1
		places[sourcePlace(wire, uint32(len(places)))].Address = wire32(address)
	}
	limit := func() error {
		for i := range places {
			if len(addresses) > 0 {
				places[i].Limited = 1
			}
			if err := s.objects.TunnelPlaces.Put(uint32(i), places[i]); err != nil {
				return fmt.Errorf("write place %d of the tunnels' sources: %w", i, err)
			}
		}
		return nil
	}
	if len(addresses) == 0 { // anybody is taken before the known ones go
		if err := limit(); err != nil {
			return err
		}
		return replace(s.objects.TunnelSources, want)
	}
	if err := replace(s.objects.TunnelSources, want); err != nil {
		return err
	}
	return limit()
}

// sourcePlace is tunnel_source_known's index (bpf/state/tunnel_sources.h) among a power of two.
func sourcePlace(wire [16]byte, places uint32) uint32 {
	var mixed uint32
	for at := 0; at < len(wire); at += 4 {
		mixed ^= binary.LittleEndian.Uint32(wire[at:])
	}
	return uint32(uint64(mixed*0x9e3779b1) * uint64(places) >> 32)
}
