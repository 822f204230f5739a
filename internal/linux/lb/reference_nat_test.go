// Reference of bpf/lb/send/nat.h: the server's address in place of the VIP.
package lb

import (
	"encoding/binary"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// nattedError is an ICMP error as the server knows its packets: from its own address and port.
func nattedError(p *refPacket, server *model.Server) []byte {
	ip := slices.Clone(p.ip[:p.length])
	address, check, quote := server.Address.AsSlice(), ip[p.l4+2:], ip[p.l4+8:]
	source, ports := quote[12:16], quote[20:]
	if p.v6() {
		source, ports = quote[8:24], quote[40:]
		replaceBytes(check, ip[24:40], address)
	} else {
		replaceBytes(ip[10:], ip[16:20], address)
		replaced := slices.Clone(quote[10:12])
		replaceBytes(replaced, source, address)
		copy(source, p.ip[p.l4+20:])
		replaceBytes(check, quote[10:], replaced)
	}
	replaceBytes(check, source, address)
	if server.Port != 0 {
		replaceBytes(check, ports, binary.BigEndian.AppendUint16(nil, server.Port))
	}
	return ip
}

// natted is the packet with the server's address, and port if it has one of its own, as its destination.
func natted(p *refPacket, server *model.Server) []byte {
	ip := slices.Clone(p.ip[:p.length])
	address := server.Address.AsSlice()
	at, check := ip[16:20], []byte(nil)
	if p.v6() {
		at = ip[24:40]
	}
	if p.fragment != laterFragment {
		check = p.checksum(ip)
	}
	if server.Port != 0 && p.fragment != laterFragment {
		replaceBytes(check, ip[p.l4+2:], binary.BigEndian.AppendUint16(nil, server.Port))
	}
	if !p.v6() {
		replaceBytes(ip[10:], slices.Clone(at), address)
	}
	replaceBytes(check, at, address)
	p.neverNone(check)
	return ip
}

// checksum is where in a copy of the packet that of TCP or UDP is; nil: UDP without.
func (p *refPacket) checksum(ip []byte) []byte {
	check := ip[p.l4+map[byte]int{6: 16, 17: 6}[p.protocol]:]
	if p.protocol == 17 && check[0]|check[1] == 0 {
		return nil
	}
	return check
}

// neverNone makes a checksum of 0 what RFC 768 wants: 0 means "none" in UDP.
func (p *refPacket) neverNone(check []byte) {
	if p.protocol == 17 && check != nil && check[0]|check[1] == 0 {
		check[0], check[1] = 0xff, 0xff
	}
}
