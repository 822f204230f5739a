package datapath

import (
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// FuzzLB drives the program with raw frames. Whatever comes in, the reference agrees, and what leaves is as sound as what came.
func FuzzLB(f *testing.F) {
	w := newWorld(f, serviceOf("web", vip4, nil), serviceOf("web6", vip6, withServers(true, 1, 2, 3)), udpService("dns", vip4, nil),
		serviceOf("nat", node4, func(s *model.Service) { s.Return, s.Ports = model.ReturnThrough, []uint16{80}; setPorts(s, 8080) }))
	for _, frame := range w.typicalFrames() {
		f.Add(frame)
	}
	for _, pattern := range optionPatterns {
		to := flowTo(vip4, 443, 2)
		f.Add(to.frame(to.tcp(ack, optionBytes(pattern.hex, 1, w.cookieFor("web", to, 3, 1)), []byte("x"))))
	}
	to := flowTo(node4, 80, 1)
	f.Add(to.frame(to.tcp(syn, synOptions(), nil)))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > 3000 {
			t.Skip("not a frame")
		}
		if p, _ := parseRef(frame); p != nil && p.source.IsValid() && netip.PrefixFrom(node4, 16).Contains(p.source) {
			t.Skip("may be an answer of a server, which the reference does not know")
		}
		w.TB = t
		w.check(frame)
	})
}
