package api

import (
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// predecessorToProto returns nil for a service that has none.
func predecessorToProto(p *model.Predecessor) *ballastv1.Predecessor {
	if !p.Exists() && p.Forward == model.ForwardL2 && p.Share == 0 {
		return nil
	}
	m := &ballastv1.Predecessor{Forward: p.Forward.String(), Share: new(uint32(p.Share.Permille()))}
	if p.Exists() {
		m.Addresses = &ballastv1.Addresses{}
	}
	for _, address := range p.Addresses {
		m.Addresses.Addresses = append(m.Addresses.Addresses, address.String())
	}
	return m
}

func (in *input) predecessor(path string, p *model.Predecessor, m *ballastv1.Predecessor) {
	if m.GetAddresses() != nil {
		p.Addresses = make([]netip.Addr, len(m.Addresses.Addresses))
		for i, text := range m.Addresses.Addresses {
			in.address(path, fmt.Sprintf("addresses[%d]", i), &p.Addresses[i], text)
		}
	}
	choose(in, path, "forward", &p.Forward, m.GetForward())
	if m != nil && m.Share != nil {
		if *m.Share > model.ShareAll {
			in.fail(path+".share", fmt.Sprintf("use 0 to %d", model.ShareAll), "%d is out of range", *m.Share)
		}
		p.Share = model.ShareOf(uint16(min(*m.Share, model.ShareAll)))
	}
}
