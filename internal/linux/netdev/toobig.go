package netdev

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/ballast-lb/ballast/internal/algo/pathid"
)

// TooBig is somebody's word that packets of ours to Destination must not be longer than MTU bytes. Anybody can send it: what it quotes
// of the packet shows whether its sender has seen one (Proves).
type TooBig struct {
	Source, Destination netip.Addr // of the packet that was too big
	MTU                 uint16

	Identification uint16 // IPv4
	Label          uint32 // IPv6
	Entropy        uint16 // of the flow inside
}

// Below these nothing is believed. IPv4: clients are then told 576 at the least (RFC 791), whatever is put around their packets. IPv6: RFC 8200;
// what is inside may not fit then, and if it is IPv6, is sent all the same.
const (
	minMTU4 = 576 + gueWithStops4
	minMTU6 = 1280

	gueWithStops4 = 20 + 8 + 4 + 12
)

// So many of them are read in a second; routers send far fewer.
const tooBigRate, tooBigBurst = 200, 400

// Proves reports whether the quote is of a packet that carries the secret of its destination.
func (t TooBig) Proves(secret uint32) bool {
	if t.Destination.Is4() {
		return t.Identification == pathid.Identification(secret)
	}
	return t.Label == pathid.Label(secret, t.Entropy)
}

// WatchTooBig calls report for every "fragmentation needed" (RFC 1191) and "packet too big" (RFC 8201) about a tunnel packet of this
// host, until ctx ends, but not for more than a limit. The kernel drops them: it has no tunnel of its own that they could be about. report runs
// concurrently with itself.
func WatchTooBig(ctx context.Context, report func(TooBig)) error {
	parsers := map[string]func([]byte) (TooBig, bool){"ip4:icmp": parseTooBig4, "ip6:ipv6-icmp": parseTooBig6}
	for network, parse := range parsers {
		socket, err := net.ListenPacket(network, "")
		if err != nil {
			return fmt.Errorf("listen for ICMP errors: %w: root is needed", err)
		}
		context.AfterFunc(ctx, func() { socket.Close() })
		go func() {
			message := make([]byte, 1500)
			limit := rate.NewLimiter(tooBigRate, tooBigBurst)
			for {
				n, _, err := socket.ReadFrom(message)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					continue
				}
				if found, ok := parse(message[:n]); ok && limit.AllowN(time.Now(), 1) {
					report(found)
				}
			}
		}()
	}
	return nil
}

// Protocols of our tunnels.
const (
	protocolIPIP = 4
	protocolUDP  = 17 // GUE
	protocolIPv6 = 41
)

func isTunnel(protocol byte) bool {
	return protocol == protocolIPIP || protocol == protocolIPv6 || protocol == protocolUDP
}

func parseTooBig4(message []byte) (found TooBig, ok bool) {
	const unreachable, fragmentationNeeded = 3, 4
	if len(message) < 28 || message[0] != unreachable || message[1] != fragmentationNeeded || !isTunnel(message[8+9]) {
		return found, false
	}
	found = TooBig{Source: netip.AddrFrom4([4]byte(message[8+12:])), Destination: netip.AddrFrom4([4]byte(message[8+16:])),
		MTU: binary.BigEndian.Uint16(message[6:]), Identification: binary.BigEndian.Uint16(message[8+4:])}
	return found, found.MTU >= minMTU4
}

// parseTooBig6 wants the inner headers as well: RFC 4443 2.4 c has routers quote as much as fits.
func parseTooBig6(message []byte) (found TooBig, ok bool) {
	const tooBig = 2
	if len(message) < 48 || message[0] != tooBig || !isTunnel(message[8+6]) {
		return found, false
	}
	mtu := binary.BigEndian.Uint32(message[4:])
	found = TooBig{Source: netip.AddrFrom16([16]byte(message[8+8:])), Destination: netip.AddrFrom16([16]byte(message[8+24:])),
		MTU: uint16(min(mtu, 65535)), Label: binary.BigEndian.Uint32(message[8:]) & 0xfffff}
	found.Entropy, ok = innerEntropy(message[8+6], message[48:])
	return found, ok && mtu >= minMTU6
}

// innerEntropy is that of the packet that a tunnel header of the protocol is followed by.
func innerEntropy(protocol byte, b []byte) (entropy uint16, ok bool) {
	if protocol == protocolUDP {
		if len(b) < 12 {
			return 0, false
		}
		words := int(b[8] & 0x1f)
		protocol = b[9]
		if b = b[12:]; len(b) < words*4 {
			return 0, false
		}
		b = b[words*4:]
	}
	var client netip.Addr
	var l4 int
	var inner byte
	later := false
	switch {
	case protocol == protocolIPIP && len(b) >= 20:
		client, _ = netip.AddrFromSlice(b[12:16])
		inner, l4, later = b[9], 20, binary.BigEndian.Uint16(b[6:])&0x1fff != 0
	case protocol == protocolIPv6 && len(b) >= 40:
		client, _ = netip.AddrFromSlice(b[8:24])
		inner, l4 = b[6], 40
		if inner == 44 && len(b) >= 48 {
			inner, l4, later = b[40], 48, binary.BigEndian.Uint16(b[42:])>>3 != 0
		}
	default:
		return 0, false
	}
	if later || inner != 6 && inner != 17 {
		return pathid.Entropy(netip.AddrPortFrom(client, 0), 0), true
	}
	if len(b) < l4+4 {
		return 0, false
	}
	return pathid.Entropy(netip.AddrPortFrom(client, binary.BigEndian.Uint16(b[l4:])), binary.BigEndian.Uint16(b[l4+2:])), true
}
