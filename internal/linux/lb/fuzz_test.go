package lb

import (
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Destinations of services with affinity table and local-table, where others are.
var (
	tableVIP  = netip.MustParseAddr("198.51.100.13")
	localVIP  = netip.MustParseAddr("198.51.100.14")
	tableVIP6 = netip.MustParseAddr("2001:db8::13")
)

// FuzzLB drives the program with raw frames. Whatever comes in, the reference agrees, and what leaves is as sound as what came.
func FuzzLB(f *testing.F) {
	w := newWorld(f, serviceOf("web", vip4, nil), serviceOf("web6", vip6, withServers(true, 1, 2, 3)), udpService("dns", vip4, nil),
		serviceOf("nat", node4, func(s *model.Service) { s.Return, s.Ports = model.ReturnThrough, []uint16{80}; setPorts(s, 8080) }),
		tableOf("table", tableVIP, withScrubber(false)), tableOf("table6", tableVIP6, func(s *model.Service) { s.Table.IndexBits = 2 }),
		serviceOf("local", localVIP, localTable(model.DispatchMaglev)))
	w.suspect("table", netip.PrefixFrom(client4, 32))
	w.update(func(want *plan.Want) { want.Rejects = true })
	w.acceptTunnels(nodeAddresses[0])
	for _, frame := range w.typicalFrames() {
		f.Add(frame)
	}
	for _, pattern := range optionPatterns {
		to := flowTo(vip4, 443, 2)
		f.Add(to.frame(to.tcp(ack, optionBytes(pattern.hex, 1, w.cookieFor("web", to, 3, 1)), []byte("x"))))
	}
	for _, vip := range []netip.Addr{tableVIP, tableVIP6, localVIP} {
		for n, flags := range []byte{syn, ack, ack, fin | ack, rst} {
			to := flowTo(vip, 443, 1)
			segment := to.tcp(flags, timestamps(1, w.cookieFor(map[bool]string{false: "table", true: "table6"}[vip.Is6()], to, 2, 1)), []byte("x"))
			f.Add(ethernet(uint16(n), ipPacket(to.client.Addr(), vip, 6, segment)))
			f.Add(ethernet(0, tunnelled(nodeAddresses[0], n%2 == 0, byte(n), ipPacket(to.client.Addr(), vip, 6, segment))))
		}
	}
	to := flowTo(node4, 80, 1)
	f.Add(to.frame(to.tcp(syn, synOptions(), nil)))
	from := netip.AddrPortFrom(serverOf(2, false).Address, 8080)
	for _, destination := range []netip.AddrPort{to.client, netip.AddrPortFrom(node4, 999), netip.AddrPortFrom(vip4, 999)} {
		for _, options := range [][]byte{nil, timestamps(5, 6), append([]byte{1}, timestamps(0, 6)...), synOptions()} {
			segment := tcpSegment(from, destination, psh|ack, options, []byte("200 OK"))
			f.Add(ethernet(0, ipPacket(from.Addr(), destination.Addr(), 6, segment)))
			f.Add(fragmentOf(from.Addr(), destination.Addr(), 6, 9, 0, true, segment))
			f.Add(fragmentOf(from.Addr(), destination.Addr(), 6, 9, 48, false, segment))
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > 3000 {
			t.Skip("not a frame")
		}
		w.TB = t
		w.age()
		w.check(frame)
	})
}
