package plan

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/sessionid"
	"github.com/ballast-lb/ballast/internal/algo/siphash"
	"github.com/ballast-lb/ballast/internal/model"
)

// SessionConfig is struct session_config: how connections of a service with session tls or syn_proxy begin.
type SessionConfig struct {
	IDs        [2]struct{ Tag, Hide siphash.State } // by parity of the epoch
	SYNCookies siphash.State
	HasIDs     [2]uint8
	MSS        uint16
	Scale      uint8
	Clients    uint8 // of a session that reach its server; 0: all
	_          [2]uint8
}

// Implementation constants.
const (
	// SessionScale is that of the windows of connections that load balancers begin: of all servers, as no load balancer knows which one it will be.
	SessionScale = 7

	ethernetMTU = 1500
)

// SessionIDKey is that of the session ids of a service, of an epoch's cookie key.
func SessionIDKey(fleet [16]byte, vip netip.Addr) sessionid.Key {
	return sessionid.Load([32]byte(cookie.Derive(fleet, cookie.ForSessionIDs, vip, 0, 32)))
}

// SYNCookieKey is that of the answers to SYNs of a service: of the placement key, as they are good for two minutes and say nothing of an epoch.
func SYNCookieKey(keys *model.Keys, vip netip.Addr) cookie.Key {
	return cookie.Load([16]byte(cookie.Derive(keys.Placement, cookie.ForSYNCookies, vip, 0, 16)))
}

// sessionConfig is nil for services whose connections never begin at load balancers.
func sessionConfig(keys *model.Keys, s *model.Service, servers map[uint16]ServerRow) *SessionConfig {
	if !s.BegunForServers() {
		return nil
	}
	c := &SessionConfig{Scale: SessionScale, MSS: segmentSize(s, servers)}
	key := SYNCookieKey(keys, s.VIP)
	c.SYNCookies = siphash.Begin(key.K0, key.K1)
	if s.Session != model.SessionTLS {
		return c
	}
	c.Clients = s.SessionClients
	for epoch, fleet := range keys.Cookie {
		ids := SessionIDKey(fleet, s.VIP)
		c.HasIDs[epoch&1] = 1
		c.IDs[epoch&1].Tag, c.IDs[epoch&1].Hide = siphash.Begin(ids.Tag.K0, ids.Tag.K1), siphash.Begin(ids.Hide.K0, ids.Hide.K1)
	}
	return c
}

// segmentSize is what fits the ways to all servers.
func segmentSize(s *model.Service, servers map[uint16]ServerRow) uint16 {
	least := ethernetMTU
	for i := range s.Servers {
		room := ethernetMTU
		if row, known := servers[s.Servers[i].ID]; known && row.MTU != 0 {
			room = int(row.MTU)
		}
		least = min(least, room-Overhead(s, s.Servers[i].Address))
	}
	return uint16(least - ClientHeaders(s.HasIPv6()))
}

// leaveSessions makes sessions of servers that cannot take them over begin again elsewhere: of those that are not healthy, and of removed ones, whose agents
// have nothing to do with the service any more.
func (img *image) leaveSessions(s *Service) {
	if s.Session != model.SessionTLS {
		return
	}
	leave := func(id uint16) {
		if row, known := img.servers[id]; known {
			row.Flags |= ServerDown
			img.servers[id] = row
		}
	}
	for i := range s.Removed {
		leave(s.Removed[i].ID)
	}
	for id, down := range s.Down {
		if down {
			leave(id)
		}
	}
}
