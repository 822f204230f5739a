package bench

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/lab/bench/peer"
	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/model"
)

// openPeers loads programs of others. unload must be called.
func openPeers(files []string) (all []subject, unload func(), err error) {
	var open []*peer.Peer
	unload = func() {
		for _, p := range open {
			p.Close()
		}
	}
	for _, file := range files {
		p, err := peer.Open(file)
		if err != nil {
			unload()
			return nil, nil, err
		}
		open = append(open, p)
		all = append(all, peerSubject(p))
	}
	return all, unload, nil
}

func peerSubject(p *peer.Peer) subject {
	kind := segmentACK
	if p.SYN {
		kind = segmentSYN
	}
	cell := plainCell(p.VIP, kind)
	if p.Protocol == model.ProtocolUDP {
		cell = wrapper.Cell{Frame: datagramFrame(p.VIP, nil), IPv6: p.VIP.Is6()}
	}
	cell.Growth = p.Growth
	s := subject{name: p.Title, program: p.Loaded(), cell: cell, keeps: p.Growth == 0, verdict: "not counted",
		check: func(output []byte, s sent) error { return checkPeer(output, s, p.Destinations) }}
	if p.Counter != nil {
		s.counted, s.verdict = p.Counted, "counted"
	}
	return s
}

// checkPeer checks that a packet is whole behind its outer headers, and that these lead to one of the destinations.
func checkPeer(output []byte, s sent, destinations []netip.Addr) error {
	in, growth := s.bytes(), int(s.cell.Growth)
	if growth == 0 {
		if bytes.Equal(output[:12], in[:12]) {
			return errors.New("the program has not changed the link-layer addresses")
		}
		return nil
	}
	if !bytes.Equal(output[14+growth:], in[14:]) {
		return fmt.Errorf("the packet behind the outer headers is\n%x, want\n%x", output[14+growth:], in[14:])
	}
	to, ok := netip.AddrFromSlice(output[14+16 : 14+20])
	if output[14]>>4 == 6 {
		to, ok = netip.AddrFromSlice(output[14+24 : 14+40])
	}
	if !ok || !slices.Contains(destinations, to) {
		return fmt.Errorf("the packet goes to %s, want one of %s", to, destinations)
	}
	return nil
}

// checkCounted checks that a program that is not ours has counted every packet.
func (s *subject) checkCounted(before, runs uint64) error {
	if s.counted == nil {
		return nil
	}
	after, err := s.counted()
	if err == nil && after-before != runs {
		err = fmt.Errorf("the program has counted %d of %d packets", after-before, runs)
	}
	return err
}
