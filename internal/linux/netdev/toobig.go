package netdev

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// TooBig is a router's word that packets of ours to Destination must not be longer than MTU bytes.
type TooBig struct {
	Source, Destination netip.Addr // of the packet that was too big
	MTU                 uint16
}

// Specification constants: below these no router may go (RFC 791, RFC 8200).
const (
	minMTU4 = 576 // RFC 1191 allows 68; nobody builds such links, and forgers would like them
	minMTU6 = 1280
)

// WatchTooBig calls report for every "fragmentation needed" (RFC 1191) and "packet too big" (RFC 8201) about a tunnel packet of this
// host, until ctx ends. The kernel drops them: it has no tunnel of its own that they could be about. report runs concurrently
// with itself.
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
			for {
				n, _, err := socket.ReadFrom(message)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					continue
				}
				if found, ok := parse(message[:n]); ok {
					report(found)
				}
			}
		}()
	}
	return nil
}

// Protocols of our tunnels; UDP is GUE.
func isTunnel(protocol byte) bool { return protocol == 4 || protocol == 41 || protocol == 17 }

func parseTooBig4(message []byte) (found TooBig, ok bool) {
	const unreachable, fragmentationNeeded = 3, 4
	if len(message) < 28 || message[0] != unreachable || message[1] != fragmentationNeeded || !isTunnel(message[8+9]) {
		return found, false
	}
	found = TooBig{netip.AddrFrom4([4]byte(message[8+12:])), netip.AddrFrom4([4]byte(message[8+16:])), binary.BigEndian.Uint16(message[6:])}
	return found, found.MTU >= minMTU4
}

func parseTooBig6(message []byte) (found TooBig, ok bool) {
	const tooBig = 2
	if len(message) < 48 || message[0] != tooBig || !isTunnel(message[8+6]) {
		return found, false
	}
	mtu := binary.BigEndian.Uint32(message[4:])
	found = TooBig{netip.AddrFrom16([16]byte(message[8+8:])), netip.AddrFrom16([16]byte(message[8+24:])), uint16(min(mtu, 65535))}
	return found, mtu >= minMTU6
}
