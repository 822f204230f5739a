// Who may open tunnels to a server's services.
package server

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
)

// TunnelLimit says what becomes of tunnels from addresses that are not named.
type TunnelLimit uint32

// What becomes of them.
const (
	TunnelsOfAnybody = TunnelLimit(serverTunnelLimitTUNNELS_OF_ANYBODY) // they are taken
	ForeignNoted     = TunnelLimit(serverTunnelLimitTUNNELS_NOTED)      // taken, and TunnelNotes tells of all
	ForeignDropped   = TunnelLimit(serverTunnelLimitTUNNELS_DROPPED)    // dropped, and TunnelNotes tells of them
)

// SetTunnelSources says who may open tunnels, and what becomes of those of others. A source that stays is known at every moment.
func (s *Server) SetTunnelSources(addresses []netip.Addr, limit TunnelLimit) error {
	want := make(map[[16]byte]uint32, len(addresses))
	slots := make([]serverTunnelSlot, s.objects.TunnelSlots.MaxEntries())
	for _, address := range addresses {
		mapped := address.As16()
		want[mapped] = 1
		at := &slots[sourceSlot(mapped, uint32(len(slots)))]
		for i := range at.Address {
			at.Address[i] = binary.LittleEndian.Uint32(mapped[4*i:])
		}
	}
	put := func() error {
		for i := range slots {
			slots[i].Limit = serverTunnelLimit(limit)
			if err := s.objects.TunnelSlots.Put(uint32(i), slots[i]); err != nil {
				return fmt.Errorf("write slot %d of the tunnels' sources: %w", i, err)
			}
		}
		return nil
	}
	if limit == TunnelsOfAnybody { // before the known ones go
		if err := put(); err != nil {
			return err
		}
		return replace(s.objects.TunnelSources, want)
	}
	if err := replace(s.objects.TunnelSources, want); err != nil {
		return err
	}
	return put()
}

// sourceSlot is tunnel_slot_of's index (bpf/server/tunnel/tunnel_sources.h) among a power of two.
func sourceSlot(mapped [16]byte, slots uint32) uint32 {
	var mixed uint32
	for at := 0; at < len(mapped); at += 4 {
		mixed ^= binary.LittleEndian.Uint32(mapped[at:])
	}
	return uint32(uint64(mixed*0x9e3779b1) * uint64(slots) >> 32)
}

// TunnelNotes are counters of tunnels since the maps were made.
type TunnelNotes struct {
	Foreign uint64     // packets from addresses that are not named, while the limit is not TunnelsOfAnybody
	Last    netip.Addr // that the last of them came from; invalid: there was none
	Known   uint64     // packets from addresses that are named, while the limit is ForeignNoted
}

// TunnelNotes tells of them. It may be called at any time.
func (s *Server) TunnelNotes() (found TunnelNotes, err error) {
	var perCPU []serverTunnelNote
	if err := s.objects.TunnelNotes.Lookup(uint32(0), &perCPU); err != nil {
		return found, fmt.Errorf("read what was noted of tunnels: %w", err)
	}
	var newest uint64
	for _, notes := range perCPU {
		found.Known += notes.Known
		if found.Foreign += notes.Foreign; notes.SeenNs > newest {
			newest, found.Last = notes.SeenNs, wire.IPv6(notes.Address).Unmap()
		}
	}
	return found, nil
}
