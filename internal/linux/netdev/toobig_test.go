package netdev

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/pathid"
)

// quote4 is an ICMP error of RFC 1191 about an IPv4 packet.
func quote4(kind, code, protocol byte, mtu uint16, destination string) []byte {
	message := make([]byte, 8+20)
	message[0], message[1] = kind, code
	binary.BigEndian.PutUint16(message[6:], mtu)
	message[8], message[8+9] = 0x45, protocol
	copy(message[8+16:], netip.MustParseAddr(destination).AsSlice())
	return message
}

func quote6(kind, protocol byte, mtu uint32, destination string) []byte {
	message := make([]byte, 8+40)
	message[0] = kind
	binary.BigEndian.PutUint32(message[4:], mtu)
	message[8], message[8+6] = 0x60, protocol
	copy(message[8+24:], netip.MustParseAddr(destination).AsSlice())
	if protocol == protocolIPIP {
		return append(message, make([]byte, 20)...)
	}
	return append(message, make([]byte, 40)...)
}

// Promise: Clients learn the smaller MTU of a router between the tiers after the first such packet.
func TestOnlyErrorsAboutTunnelsThatTellAPlausibleMTUCount(t *testing.T) {
	for name, c := range map[string]struct {
		found TooBig
		ok    bool
		want  uint16
	}{
		"ipip":                       call(parseTooBig4, quote4(3, 4, 4, 1400, "10.0.0.1")).expect(1400),
		"gue":                        call(parseTooBig4, quote4(3, 4, 17, 1400, "10.0.0.1")).expect(1400),
		"other code":                 call(parseTooBig4, quote4(3, 1, 4, 1400, "10.0.0.1")).expect(0),
		"tcp":                        call(parseTooBig4, quote4(3, 4, 6, 1400, "10.0.0.1")).expect(0),
		"forged tiny":                call(parseTooBig4, quote4(3, 4, 4, 619, "10.0.0.1")).expect(0),
		"small":                      call(parseTooBig4, quote4(3, 4, 4, 620, "10.0.0.1")).expect(620),
		"cut short":                  call(parseTooBig4, quote4(3, 4, 4, 1400, "10.0.0.1")[:27]).expect(0),
		"ip6":                        call(parseTooBig6, quote6(2, 41, 1400, "fd00::1")).expect(1400),
		"ip6 forged tiny":            call(parseTooBig6, quote6(2, 41, 1279, "fd00::1")).expect(0),
		"ip6 beyond 16 bits":         call(parseTooBig6, quote6(2, 4, 1<<20, "fd00::1")).expect(65535),
		"ip6 echo":                   call(parseTooBig6, quote6(128, 41, 1400, "fd00::1")).expect(0),
		"ip6 cut short":              call(parseTooBig6, quote6(2, 41, 1400, "fd00::1")[:47]).expect(0),
		"ip6 without what is inside": call(parseTooBig6, quote6(2, 41, 1400, "fd00::1")[:87]).expect(0),
	} {
		if c.ok != (c.want != 0) || c.ok && c.found.MTU != c.want {
			t.Errorf("%s: %v, %v", name, c.found, c.ok)
		}
	}
}

func TestWhatAnIPv6ErrorQuotesShowsTheFlowInside(t *testing.T) {
	const secret = 0xdeadbeef
	for _, client := range []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:20001"), netip.MustParseAddrPort("[2001:db8:f00::7]:20001")} {
		inner, outer := make([]byte, 24), byte(protocolIPIP)
		inner[0], inner[9] = 0x45, 6
		copy(inner[12:], client.Addr().AsSlice())
		if client.Addr().Is6() {
			inner, outer = make([]byte, 44), protocolIPv6
			inner[0], inner[6] = 0x60, 6
			copy(inner[8:], client.Addr().AsSlice())
		}
		ports := inner[len(inner)-4:]
		binary.BigEndian.PutUint16(ports, client.Port())
		binary.BigEndian.PutUint16(ports[2:], 443)
		label := pathid.Label(secret, pathid.Entropy(client, 443))
		for name, tunnel := range map[string][]byte{
			"ipip": {}, "gue": {0, 0, 0x17, 0xc0, 0, 0, 0, 0, 0, outer, 0, 0}, "gue with stops": append([]byte{0, 0, 0x17, 0xc0, 0, 0, 0, 0, 9, outer, 0, 0}, make([]byte, 36)...),
		} {
			message := quote6(2, outer, 1400, "fd00::1")[:48]
			if len(tunnel) > 0 {
				message[8+6] = protocolUDP
			}
			binary.BigEndian.PutUint32(message[8:], 6<<28|label)
			message = slices.Concat(message, tunnel, inner)
			if found, ok := parseTooBig6(message); !ok || !found.Proves(secret) || found.Proves(secret+1<<12) {
				t.Errorf("%s, %s: %v, %v", client, name, found, ok)
			}
			for length := range len(message) {
				if _, ok := parseTooBig6(message[:length]); ok {
					t.Errorf("%s, %s: believed when cut to %d bytes", client, name, length)
				}
			}
			message[len(message)-1]++ // another port
			if found, ok := parseTooBig6(message); !ok || found.Proves(secret) {
				t.Errorf("%s, %s: proves it of another flow", client, name)
			}
		}
	}
}

type parsed struct {
	found TooBig
	ok    bool
}

func call(parse func([]byte) (TooBig, bool), message []byte) parsed {
	found, ok := parse(message)
	return parsed{found, ok}
}

func (p parsed) expect(mtu uint16) struct {
	found TooBig
	ok    bool
	want  uint16
} {
	return struct {
		found TooBig
		ok    bool
		want  uint16
	}{p.found, p.ok, mtu}
}
