package plan

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// destinationsOf are the keys of a service. That of one of network functions has the length of its prefix in the place of a port.
func destinationsOf(s *model.Service) (keys []VIPKey) {
	if s.Functions() {
		return []VIPKey{vipKey(s.VIP, uint16(s.Destinations.Bits()), uint8(s.Protocol))}
	}
	for _, vip := range s.VIPs() {
		keys = append(keys, destinationsAt(s, vip)...)
	}
	return keys
}

func destinationsAt(s *model.Service, vip netip.Addr) (keys []VIPKey) {
	for _, port := range s.Ports {
		keys = append(keys, vipKey(vip, port, uint8(s.Protocol)))
	}
	for _, r := range s.PortRanges {
		key := vipKey(vip, r.First, uint8(s.Protocol))
		key.Last = r.Last
		keys = append(keys, key)
	}
	return keys
}

// Functions returns the prefix of a service of network functions; false: the key is of another one.
func (k VIPKey) Functions() (netip.Prefix, bool) {
	if k.Protocol != uint8(model.ProtocolAny) {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(k.VIP(), int(binary.BigEndian.Uint16(k.Port[:]))), true
}

// IsAddress reports whether the key stands for the address of a service alone.
func (k VIPKey) IsAddress() bool { return k == k.address() }

// anyFunction is the port of keys that stand for functions of any service.
const anyFunction = 0xffff

// addFunctions makes packets recognised that network functions send: by their MAC, as one of the service and as one of any. Of two that have the same, as
// behind a router, neither is: nobody could tell whose a packet is.
func (img *image) addFunctions(want *Want, s *Service) {
	known := map[[6]byte]int{}
	for i := range s.Servers {
		known[want.Paths[s.Servers[i].Address].DestinationMAC]++
	}
	for i, server := range slices.Concat(s.Removed, s.Servers) {
		mac := want.Paths[server.Address].DestinationMAC
		if mac == [6]byte{} || known[mac] > 1 {
			continue
		}
		from := returning{server.ID, i < len(s.Removed)}
		key := ReturnKey{Address: WireAddress(s.VIP), Port: wirePort(uint16(s.Destinations.Bits())), Protocol: uint8(model.ProtocolAny), MAC: mac}
		img.returns[key] = from
		key.Address, key.Port = [16]byte{}, wirePort(anyFunction)
		img.returns[key] = from
	}
}
