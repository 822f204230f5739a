package api

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

func TestWhatCannotBeAPacketIsRefused(t *testing.T) {
	number := func(n uint32) *uint32 { return &n }
	good := func(change func(*ballastv1.MadeUpPacket)) *ballastv1.MadeUpPacket {
		p := &ballastv1.MadeUpPacket{Client: "203.0.113.7:40312", Vip: "198.51.100.10:443", TcpFlags: 2, Tsval: number(1)}
		change(p)
		return p
	}
	for why, p := range map[string]*ballastv1.MadeUpPacket{
		`client "": give ADDRESS:PORT`:         nil,
		`client "203.0.113.7": give`:           good(func(p *ballastv1.MadeUpPacket) { p.Client = "203.0.113.7" }),
		`VIP "web:443": give`:                  good(func(p *ballastv1.MadeUpPacket) { p.Vip = "web:443" }),
		`VIP "198.51.100.10:65536": give`:      good(func(p *ballastv1.MadeUpPacket) { p.Vip = "198.51.100.10:65536" }),
		"leave out the zone":                   good(func(p *ballastv1.MadeUpPacket) { p.Client = "[fe80::1%eth0]:1" }),
		"of two families":                      good(func(p *ballastv1.MadeUpPacket) { p.Client = "[2001:db8::7]:1" }),
		`protocol "sctp": use tcp or udp`:      good(func(p *ballastv1.MadeUpPacket) { p.Protocol = "sctp" }),
		"neither flags nor timestamps":         good(func(p *ballastv1.MadeUpPacket) { p.Protocol = "udp" }),
		"tcp_flags 0x102: they are 8 bits":     good(func(p *ballastv1.MadeUpPacket) { p.TcpFlags = 0x102 }),
		"a payload of 1461 bytes: use 1460 or": good(func(p *ballastv1.MadeUpPacket) { p.Payload = make([]byte, 1461) }),
	} {
		if _, err := MadeUpFromProto(p); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v: %v, want %s", p, err, why)
		}
	}
	p, err := MadeUpFromProto(good(func(p *ballastv1.MadeUpPacket) { p.Client = "[::ffff:203.0.113.7]:9" }))
	if err != nil || p.Client != netip.MustParseAddrPort("203.0.113.7:9") || !p.Timestamps || p.Flags != 2 {
		t.Errorf("%+v, %v", p, err)
	}
}
