package api

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/model"
)

func (in *input) vips(path string, s *model.Service, vips []string) {
	if len(vips) > 0 {
		s.VIP, s.MoreVIPs = netip.Addr{}, nil
	}
	for _, text := range vips {
		vip, err := model.ParseAddress(text)
		if err == nil {
			err = s.AddVIP(vip)
		}
		in.refuse(path, "vips", err)
	}
}
