package api

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// bgpToProto returns nil for a load balancer that announces nothing.
func bgpToProto(b *model.BGP) *ballastv1.BGP {
	if b.IsZero() {
		return nil
	}
	m := &ballastv1.BGP{
		As: b.AS, RouterId: addressText(b.RouterID.Addr), Neighbors: texts(b.Neighbors), NeighborAs: b.NeighborAS, ListenPort: uint32(b.ListenPort), PasswordFile: b.PasswordFile,
		HoldTime: durationUnlessZero(b.HoldTime), Keepalive: durationUnlessZero(b.Keepalive), ConnectRetry: durationUnlessZero(b.ConnectRetry),
		RestartTime: durationUnlessZero(b.RestartTime), Multihop: uint32(b.Multihop), TtlSecurity: uint32(b.TTLSecurity), Communities: texts(b.Communities), Med: b.MED,
		Announce: b.Announce.String(), AnnounceDelay: durationUnlessZero(b.Delay),
	}
	if b.BFD != (model.BFD{}) {
		m.Bfd = &ballastv1.BFD{Interval: durationUnlessZero(b.BFD.Interval), Multiplier: uint32(b.BFD.Multiplier)}
	}
	return m
}

func texts[T fmt.Stringer](values []T) (list []string) {
	for _, v := range values {
		list = append(list, v.String())
	}
	return list
}

func (in *input) bgp(path string, b *model.BGP, m *ballastv1.BGP) {
	if m == nil {
		return
	}
	*b = model.BGP{AS: m.As, NeighborAS: m.NeighborAs, PasswordFile: m.PasswordFile, MED: m.Med,
		ListenPort: narrow[uint16](in, path+".listen_port", m.ListenPort), Multihop: narrow[uint8](in, path+".multihop", m.Multihop),
		TTLSecurity: narrow[uint8](in, path+".ttl_security", m.TtlSecurity)}
	in.address(path, "router_id", &b.RouterID.Addr, m.RouterId)
	for i, text := range m.Neighbors {
		neighbor, err := model.ParseNeighbor(text)
		in.refuse(path, fmt.Sprintf("neighbors[%d]", i), err)
		b.Neighbors = append(b.Neighbors, neighbor)
	}
	for i, text := range m.Communities {
		community, err := model.ParseCommunity(text)
		in.refuse(path, fmt.Sprintf("communities[%d]", i), err)
		b.Communities = append(b.Communities, community)
	}
	in.positive(path+".hold_time", &b.HoldTime, m.HoldTime)
	in.positive(path+".keepalive", &b.Keepalive, m.Keepalive)
	in.positive(path+".connect_retry", &b.ConnectRetry, m.ConnectRetry)
	in.positive(path+".restart_time", &b.RestartTime, m.RestartTime)
	in.positive(path+".announce_delay", &b.Delay, m.AnnounceDelay)
	choose(in, path, "announce", &b.Announce, m.Announce)
	if m.Bfd != nil {
		in.positive(path+".bfd.interval", &b.BFD.Interval, m.Bfd.Interval)
		b.BFD.Multiplier = narrow[uint8](in, path+".bfd.multiplier", m.Bfd.Multiplier)
	}
}
