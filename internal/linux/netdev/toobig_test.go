package netdev

import (
	"encoding/binary"
	"net/netip"
	"testing"
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
	return message
}

func TestOnlyErrorsAboutTunnelsThatTellAPlausibleMTUCount(t *testing.T) {
	for name, c := range map[string]struct {
		found TooBig
		ok    bool
		want  uint16
	}{
		"ipip":               call(parseTooBig4, quote4(3, 4, 4, 1400, "10.0.0.1")).expect(1400),
		"gue":                call(parseTooBig4, quote4(3, 4, 17, 1400, "10.0.0.1")).expect(1400),
		"other code":         call(parseTooBig4, quote4(3, 1, 4, 1400, "10.0.0.1")).expect(0),
		"tcp":                call(parseTooBig4, quote4(3, 4, 6, 1400, "10.0.0.1")).expect(0),
		"forged tiny":        call(parseTooBig4, quote4(3, 4, 4, 68, "10.0.0.1")).expect(0),
		"cut short":          call(parseTooBig4, quote4(3, 4, 4, 1400, "10.0.0.1")[:27]).expect(0),
		"ip6":                call(parseTooBig6, quote6(2, 41, 1400, "fd00::1")).expect(1400),
		"ip6 forged tiny":    call(parseTooBig6, quote6(2, 41, 600, "fd00::1")).expect(0),
		"ip6 beyond 16 bits": call(parseTooBig6, quote6(2, 4, 1<<20, "fd00::1")).expect(65535),
		"ip6 echo":           call(parseTooBig6, quote6(128, 41, 1400, "fd00::1")).expect(0),
		"ip6 cut short":      call(parseTooBig6, quote6(2, 41, 1400, "fd00::1")[:47]).expect(0),
	} {
		if c.ok != (c.want != 0) || c.ok && c.found.MTU != c.want {
			t.Errorf("%s: %v, %v", name, c.found, c.ok)
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
