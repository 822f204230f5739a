package model

import (
	"fmt"
	"time"
)

// Implementation constants: bounds of connection tables.
const (
	MinEntries     = 64      // one block
	MaxEntries     = 1 << 30 // 32 GB
	MaxPacketLimit = 60000   // an entry counts packets of a window in 16 bits
	MinIdleTimeout = Duration(time.Second)
	MaxIdleTimeout = Duration(24 * time.Hour)
	// DefaultIdleTimeout frees entries of connections that say nothing for so long. It costs them nothing but their statistics.
	DefaultIdleTimeout = Duration(5 * time.Minute)
)

func (t *Table) applyDefaults() {
	setDefault(&t.Entries, 0, DefaultEntries)
	setDefault(&t.IndexBits, 0, DefaultIndexBits)
	setDefault(&t.IdleTimeout, 0, DefaultIdleTimeout)
}

// Room is what of a table a service with affinity cookie may have: connections that began with the table carry its indices on, and no id may stand there.
func (t *Table) Room() Table { return Table{NodeBits: t.NodeBits, IndexBits: t.IndexBits} }

func (s *Service) validateTable(path string, found *findings) {
	t := &s.Table
	switch {
	case s.Affinity == AffinityCookie && *t == t.Room():
		if *t != (Table{}) {
			s.validateLayout(path, found)
		}
		return
	case s.Affinity == AffinityCookie:
		found.add(path+".table", "keep index_bits and node_bits alone, which leave room in cookies, or use affinity: table", "affinity cookie keeps no such table")
		return
	case s.Affinity != AffinityTable && *t != (Table{}):
		found.add(path+".table", "remove it, or use affinity: table", "affinity %s keeps no such table", s.Affinity)
		return
	case s.Affinity != AffinityTable || s.Protocol == ProtocolUDP: // no cookies: refused already
		return
	case s.Return == ReturnThrough:
		found.add(path+".affinity", "use return: direct, or affinity: cookie", "the index of a table's entry is kept by agents on the servers, and return: through has none")
		return
	}
	if t.Entries < MinEntries || t.Entries > MaxEntries {
		found.add(path+".table.entries", fmt.Sprintf("use %d to %d", MinEntries, MaxEntries), "%d is out of range", t.Entries)
	}
	checkDuration(path+".table.idle_timeout", t.IdleTimeout, MinIdleTimeout, MaxIdleTimeout, found)
	if t.PacketLimit > MaxPacketLimit {
		found.add(path+".table.packet_limit", fmt.Sprintf("use 0 (none) to %d", MaxPacketLimit), "%d is out of range", t.PacketLimit)
	}
	s.validateLayout(path, found)
	s.validateScrubber(path+".table.scrubber", found)
}

// validateLayout checks that node, index and id fit the cookie.
func (s *Service) validateLayout(path string, found *findings) {
	t := &s.Table
	switch {
	case t.IndexBits < 1 || t.IndexBits > MaxIndexBits:
		found.add(path+".table.index_bits", fmt.Sprintf("use 1 to %d", MaxIndexBits), "%d is out of range", t.IndexBits)
	case t.NodeBits > MaxNodeBits:
		found.add(path+".table.node_bits", fmt.Sprintf("use 0 (one tier) to %d", MaxNodeBits), "%d is out of range", t.NodeBits)
	case s.CookieBits >= MinCookieBits && s.CookieBits <= MaxCookieBits && s.IDBits() == 0:
		found.add(path+".cookie_bits", fmt.Sprintf("use up to %d, or smaller table.index_bits or table.node_bits", MaxCookieBits),
			"%d bits are one for the epoch, %d for the node and %d for the index, and leave none for the server's id", s.CookieBits, t.NodeBits, t.IndexBits)
	}
}

func (s *Service) validateScrubber(path string, found *findings) {
	if s.Table.Scrubber == "" {
		return
	}
	scrubber := s.Server(s.Table.Scrubber)
	switch {
	case scrubber == nil:
		found.add(path, "name a server of the service, of weight 0", "the service has no server %q", s.Table.Scrubber)
	case scrubber.Weight != 0:
		found.add(path, "give the scrubber weight 0, or name another server", "server %s has weight %d and would get connections of its own", scrubber.Name, scrubber.Weight)
	default:
		s.validateStops(path, scrubber, found)
	}
	if s.Fallback != FallbackSecondChance {
		found.add(path, "use fallback: second-chance", "a scrubber hands on what it lets pass as agents do, and fallback %s has none of them", s.Fallback)
	}
}

// validateStops refuses a scrubber that packets cannot visit on their way to every server: the stops of a packet are of one family.
func (s *Service) validateStops(path string, scrubber *Server, found *findings) {
	for i := range s.Servers {
		server := &s.Servers[i]
		if scrubber.Address.IsValid() && server.Address.IsValid() && server.Address.Is4() != scrubber.Address.Is4() {
			found.add(path, "name a server of their family, and have all servers of one", "packets cannot go by way of %s (%s) to server %s (%s)",
				scrubber.Name, family(scrubber.Address), server.Name, family(server.Address))
			return
		}
	}
}
