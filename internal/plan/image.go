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
	returns map[ReturnKey]uint16
}

// compile makes the image of a service. before are the slots that are published now, nil: none.
func compile(want *Want, s *Service, before []history.Slot) image {
	img := image{row: serviceRow(&want.Keys, &s.Service), servers: map[uint16]ServerRow{}, returns: map[ReturnKey]uint16{}}
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
	img.slots = placeSlots(s, before, img.servers)
	return img
}

func serviceRow(keys *model.Keys, s *model.Service) ServiceRow {
	row := ServiceRow{
		PlacementKey: cookie.ServiceKey(keys.Placement, s.VIP, s.Protocol),
		VIP:          wireAddress(s.VIP),
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
	row := ServerRow{Address: wireAddress(server.Address), Port: wirePort(server.Port), MTU: path.MTU}
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
		row.Source = wireAddress(path.Source)
	}
	return row
}

func (img *image) addReturns(want *Want, s *Service) {
	for _, server := range slices.Concat(s.Removed, s.Servers) {
		for _, port := range s.Ports {
			key := ReturnKey{Address: wireAddress(s.VIP), Port: wirePort(port), Protocol: uint8(s.Protocol)}
			if s.Forward == model.ForwardNAT {
				key.Address = wireAddress(server.Address)
				if server.Port != 0 {
					key.Port = wirePort(server.Port)
				}
			} else if key.MAC = want.Paths[server.Address].DestinationMAC; key.MAC == [6]byte{} {
				continue // without a MAC address the key would be that of any server
			}
			img.returns[key] = server.ID
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

func placeSlots(s *Service, before []history.Slot, servers map[uint16]ServerRow) []history.Slot {
	table := maglev.Table
	if s.Dispatch == model.DispatchHash {
		table = modulo.Table
	}
	known := func(id uint16) bool { _, ok := servers[id]; return ok }
	owners := table(s.TableSlots, s.Shares())
	if before == nil && len(s.Past) == 0 {
		return history.First(owners, table(s.TableSlots, s.SharesBeforeDrain()))
	}
	if before == nil {
		for _, shares := range s.Past {
			before = history.Push(before, table(s.TableSlots, shares), known)
		}
	}
	return history.Push(before, owners, known)
}
