package plan

import (
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/history"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/algo/rounds"
	"github.com/ballast-lb/ballast/internal/model"
)

// Path is how frames reach a server; the zero value: not known.
type Path struct {
	Ifindex                   uint32
	VLAN                      uint16
	Source                    netip.Addr
	SourceMAC, DestinationMAC [6]byte
	MTU                       uint16
}

// Service is one service as it should be, with what the model does not know.
type Service struct {
	model.Service
	// Removed servers have left the configuration; their connections have not ended (Cheetah III-A: AllServers).
	Removed []model.Server
	// Past holds what the table was made of before, oldest first; used where no published table tells.
	Past [][]model.Share
	// NoCookie are ids of servers that cannot take part in return: through.
	NoCookie map[uint16]bool
}

// Want is all that the tables should say.
type Want struct {
	Keys     model.Keys
	Services []Service
	Paths    map[netip.Addr]Path
}

// image is the compiled form of a service: all but where in the tables it lies.
type image struct {
	row     ServiceRow // without number, bases and counts
	vips    []VIPKey
	servers map[uint16]ServerRow // without counter
	rounds  []uint16
	slots   []history.Slot
	table   table // what the slots were made of; zero after Restore
	returns map[ReturnKey]returning
}

// table is what decides about the owners of slots: filling them is most of the work of an update, and most updates change
// other things.
type table struct {
	hash   bool // not Maglev
	slots  uint32
	shares []model.Share
}

func (t *table) equal(o *table) bool {
	return t.hash == o.hash && t.slots == o.slots && slices.Equal(t.shares, o.shares)
}

func (t *table) owners(shares []model.Share) []uint16 {
	if t.hash {
		return modulo.Table(t.slots, shares)
	}
	return maglev.Table(t.slots, shares)
}

// compile makes the image of a service. before is the one that is published now, the zero value: none.
func compile(want *Want, s *Service, before *image) image {
	img := image{row: serviceRow(&want.Keys, &s.Service), servers: map[uint16]ServerRow{}, returns: map[ReturnKey]returning{}}
	for _, port := range s.Ports {
		img.vips = append(img.vips, vipKey(s.VIP, port, uint8(s.Protocol)))
	}
	for _, server := range slices.Concat(s.Removed, s.Servers) {
		img.servers[server.ID] = serverRow(s, &server, want.Paths[server.Address])
	}
	if s.Return == model.ReturnThrough {
		img.addReturns(want, s)
	}
	img.rounds = takeTurns(want, s)
	img.table = table{s.Dispatch == model.DispatchHash, s.TableSlots, s.Shares()}
	img.slots = img.placeSlots(s, before)
	return img
}

func serviceRow(keys *model.Keys, s *model.Service) ServiceRow {
	row := ServiceRow{
		PlacementKey: cookie.ServiceKey(keys.Placement, s.VIP, s.Protocol),
		VIP:          WireAddress(s.VIP),
		Dispatch:     uint8(s.Dispatch),
		Affinity:     uint8(s.Affinity),
		Forward:      uint8(s.Forward),
		CookieBits:   s.CookieBits,
		EpochParity:  uint8(keys.Current & 1),
	}
	for epoch, key := range keys.Cookie {
		row.CookieKey[epoch&1] = cookie.ServiceKey(key, s.VIP, s.Protocol)
		row.Epochs |= 1 << (epoch & 1)
	}
	if s.Return == model.ReturnThrough {
		row.Flags |= ServiceThrough
	}
	if s.Fallback == model.FallbackSecondChance {
		row.Flags |= ServiceSecondChance
	}
	if len(s.Ports) == 1 {
		row.Port = wirePort(s.Ports[0])
	}
	return row
}

func serverRow(s *Service, server *model.Server, path Path) ServerRow {
	row := ServerRow{Address: WireAddress(server.Address), Port: wirePort(server.Port), MTU: path.MTU}
	if server.Address.Is6() {
		row.Flags |= ServerIPv6
	}
	if s.NoCookie[server.ID] {
		row.Flags |= ServerNoCookie
	}
	if path.Ifindex != 0 {
		row.Flags |= ServerNextHop
		row.Ifindex, row.VLAN = path.Ifindex, wirePort(path.VLAN)
		row.SourceMAC, row.DestinationMAC = path.SourceMAC, path.DestinationMAC
		row.Source = WireAddress(path.Source)
	}
	return row
}

// returning is whose answers a return key recognises.
type returning struct {
	id      uint16
	removed bool // it has left this service, and may be in another one by now
}

func (img *image) addReturns(want *Want, s *Service) {
	for i, server := range slices.Concat(s.Removed, s.Servers) {
		for _, port := range s.Ports {
			key := ReturnKey{Address: WireAddress(s.VIP), Port: wirePort(port), Protocol: uint8(s.Protocol)}
			if s.Forward == model.ForwardNAT {
				key.Address = WireAddress(server.Address)
				if server.Port != 0 {
					key.Port = wirePort(server.Port)
				}
			} else if key.MAC = want.Paths[server.Address].DestinationMAC; key.MAC == [6]byte{} {
				continue // without a MAC address the key would be that of any server
			}
			img.returns[key] = returning{server.ID, i < len(s.Removed)}
		}
	}
}

// takeTurns is the sequence of ids for rr, wrr and p2c: only servers that may get new connections, that can take part, and that
// there is a way to.
func takeTurns(want *Want, s *Service) []uint16 {
	reachable := map[uint16]bool{}
	for _, server := range s.Servers {
		reachable[server.ID] = want.Paths[server.Address].Ifindex != 0
	}
	takers := slices.DeleteFunc(s.Shares(), func(share model.Share) bool { return s.NoCookie[share.ID] || !reachable[share.ID] })
	switch s.Dispatch {
	case model.DispatchWRR, model.DispatchP2C:
		return rounds.Weighted(takers)
	case model.DispatchRR:
		return rounds.Equal(takers)
	}
	return nil
}

func (img *image) placeSlots(s *Service, before *image) []history.Slot {
	known := func(id uint16) bool { _, ok := img.servers[id]; return ok }
	forgotten := func() bool {
		for id := range before.servers {
			if !known(id) {
				return true
			}
		}
		return false
	}
	if before.slots != nil && img.table.equal(&before.table) && !forgotten() {
		return before.slots
	}
	owners, slots := img.table.owners(img.table.shares), before.slots
	if slots == nil && len(s.Past) == 0 {
		undrained := s.SharesBeforeDrain()
		if slices.Equal(undrained, img.table.shares) {
			return history.First(owners, nil)
		}
		return history.First(owners, img.table.owners(undrained))
	}
	if slots == nil {
		for _, shares := range s.Past {
			slots = history.Push(slots, img.table.owners(shares), known)
		}
	}
	return history.Push(slots, owners, known)
}
