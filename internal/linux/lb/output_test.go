package lb

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// compare holds what the program did to what it must do.
func (w *world) compare(frame []byte, got result, want expectation) {
	w.Helper()
	fail := func(format string, args ...any) {
		w.Helper()
		w.Fatalf("%s\nframe %s\nout   %s", fmt.Sprintf(format, args...), hex.EncodeToString(frame), hex.EncodeToString(got.frame))
	}
	if got.verdict != want.verdict || got.service != want.service || got.action != want.action {
		fail("got verdict %s of service %q with action %d, want %s of %q with %d", verdictNames[got.verdict], got.service, got.action,
			verdictNames[want.verdict], want.service, want.action)
	}
	switch {
	case want.frame == nil:
		if got.action == xdpPass && !bytes.Equal(got.frame, frame) {
			fail("a frame that passes was changed")
		}
		return
	case want.ids == nil:
		if answer := want.frame(0); !bytes.Equal(got.frame, answer) {
			fail("answered otherwise than\n      %s", hex.EncodeToString(answer))
		}
	case got.front != want.front:
		fail("in fragments behind %d bytes, want %d", got.front, want.front)
	case want.serverOf(got.frame) == 0:
		fail("sent otherwise than\n      %s", hex.EncodeToString(want.frame(want.ids[0])))
	}
	if err := verifyFrame(got.frame); err != nil && verifyFrame(frame) == nil {
		fail("%v", err)
	}
}

// serverOf is the server that the frame went to, or 0 when it is not what any of the allowed servers should get.
func (e *expectation) serverOf(frame []byte) uint16 {
	for _, id := range e.ids {
		if bytes.Equal(frame, e.frame(id)) {
			return id
		}
	}
	return 0
}

func linkLength(frame []byte) int {
	if len(frame) > 18 && binary.BigEndian.Uint16(frame[12:]) == 0x8100 {
		return 18
	}
	return 14
}

// entropyOf is the value that spreads flows over paths, from the flow label or GUE's source port.
func entropyOf(frame []byte) uint16 {
	ip := frame[linkLength(frame):]
	switch {
	case len(ip) > 40 && ip[0]>>4 == 6:
		return binary.BigEndian.Uint16(ip[2:])
	case len(ip) > 28 && ip[9] == 17:
		return binary.BigEndian.Uint16(ip[20:]) & 0x3fff
	}
	return 0
}

// verifyFrame reads a frame to its innermost packet and verifies every length and checksum on the way.
func verifyFrame(frame []byte) error { return verifyIP(frame[linkLength(frame):]) }

func verifyIP(ip []byte) error {
	switch {
	case len(ip) >= 20 && ip[0]>>4 == 4:
		length := int(binary.BigEndian.Uint16(ip[2:]))
		if ip[0] != 0x45 || length < 20 || length > len(ip) {
			return fmt.Errorf("an IPv4 packet of %d bytes in %d", length, len(ip))
		}
		if foldSum(ip[:20]) != 0xffff {
			return errors.New("wrong IPv4 checksum")
		}
		if binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			return nil // the transport checksum covers more than this fragment
		}
		return verifyTransport(ip[9], ip[12:16], ip[16:20], ip[20:length])
	case len(ip) >= 40 && ip[0]>>4 == 6:
		length := 40 + int(binary.BigEndian.Uint16(ip[4:]))
		if length > len(ip) {
			return fmt.Errorf("an IPv6 packet of %d bytes in %d", length, len(ip))
		}
		return verifyTransport(ip[6], ip[8:24], ip[24:40], ip[40:length])
	}
	return errors.New("neither an IPv4 nor an IPv6 packet")
}

func verifyTransport(protocol byte, from, to, b []byte) error {
	switch protocol {
	case 4, 41:
		return verifyIP(b)
	case 6, 17, 58:
		if len(b) < 8 || protocol == 6 && len(b) < 20 {
			return errors.New("transport header cut short")
		}
		if protocol == 17 && int(binary.BigEndian.Uint16(b[4:])) != len(b) {
			return fmt.Errorf("UDP length %d in %d bytes", binary.BigEndian.Uint16(b[4:]), len(b))
		}
		gue := protocol == 17 && binary.BigEndian.Uint16(b[2:]) == 6080
		if gue && len(b) > 12+4*int(b[8]&31) {
			return verifyIP(b[12+4*int(b[8]&31):])
		}
		if protocol == 17 && b[6]|b[7] == 0 && len(from) == 4 {
			return nil
		}
		if foldSum(pseudoHeader(addressIn(from), addressIn(to), protocol, len(b)), b) != 0xffff {
			return fmt.Errorf("wrong checksum of protocol %d", protocol)
		}
	case 1:
		if len(b) < 8 || foldSum(b) != 0xffff {
			return errors.New("wrong ICMP checksum")
		}
	}
	return nil
}

// decode parses the innermost packet by somebody else's code, which must find nothing wrong with it, and returns its layers.
func (w *world) decode(frame []byte) gopacket.Packet {
	w.Helper()
	ip := innermost(frame)
	first := layers.LayerTypeIPv4
	if ip[0]>>4 == 6 {
		first = layers.LayerTypeIPv6
	}
	packet := gopacket.NewPacket(ip, first, gopacket.Default)
	if failure := packet.ErrorLayer(); failure != nil {
		w.Fatalf("%v in %s", failure.Error(), hex.EncodeToString(frame))
	}
	for _, layer := range packet.Layers() {
		if covered, ok := layer.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			mustSet(covered.SetNetworkLayerForChecksum(packet.NetworkLayer()))
		}
	}
	if err, mismatches := packet.VerifyChecksums(); err != nil || len(mismatches) > 0 {
		w.Fatalf("checksums of %s: %v %v", hex.EncodeToString(frame), err, mismatches)
	}
	return packet
}

// innermost is the IP packet that a forwarded frame carries.
func innermost(frame []byte) []byte {
	ip := frame[linkLength(frame):]
	for {
		header, protocol := 20, ip[9]
		if ip[0]>>4 == 6 {
			header, protocol = 40, ip[6]
		}
		switch {
		case protocol == 4 || protocol == 41:
			ip = ip[header:]
		case protocol == 17 && slices.Equal(ip[header+2:header+4], []byte{0x17, 0xc0}):
			ip = ip[header+12+4*int(ip[header+8]&31):]
		default:
			return ip
		}
	}
}
