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
	StrangersNoted   = TunnelLimit(serverTunnelLimitTUNNELS_NOTED)      // taken, and TunnelNotes tells of all
	StrangersDropped = TunnelLimit(serverTunnelLimitTUNNELS_DROPPED)    // dropped, and TunnelNotes tells of them
)

// SetTunnelSources says who may open tunnels, and what becomes of those of others. A source that stays is known at every moment.
func (s *Server) SetTunnelSources(addresses []netip.Addr, limit TunnelLimit) error {
	want := make(map[[16]byte]uint32, len(addresses))
	places := make([]serverTunnelPlace, s.objects.TunnelPlaces.MaxEntries())
	for _, address := range addresses {
		mapped := address.As16()
		want[mapped] = 1
		at := &places[sourcePlace(mapped, uint32(len(places)))]
		for i := range at.Address {
			at.Address[i] = binary.LittleEndian.Uint32(mapped[4*i:])
		}
	}
	put := func() error {
		for i := range places {
			places[i].Limit = serverTunnelLimit(limit)
			if err := s.objects.TunnelPlaces.Put(uint32(i), places[i]); err != nil {
				return fmt.Errorf("write place %d of the tunnels' sources: %w", i, err)
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

// sourcePlace is tunnel_taken's index (bpf/server/tunnel/tunnel_sources.h) among a power of two.
func sourcePlace(mapped [16]byte, places uint32) uint32 {
	var mixed uint32
	for at := 0; at < len(mapped); at += 4 {
		mixed ^= binary.LittleEndian.Uint32(mapped[at:])
	}
	return uint32(uint64(mixed*0x9e3779b1) * uint64(places) >> 32)
}

// TunnelNotes are counters of tunnels since the maps were made.
type TunnelNotes struct {
	Strangers uint64     // packets from addresses that are not named, while the limit is not TunnelsOfAnybody
	Last      netip.Addr // that the last of them came from; invalid: there was none
	Known     uint64     // packets from addresses that are named, while the limit is StrangersNoted
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
		if found.Strangers += notes.Strangers; notes.SeenNs > newest {
			newest, found.Last = notes.SeenNs, wire.IPv6(notes.Address).Unmap()
		}
	}
	return found, nil
}
