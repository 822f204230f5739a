// The filter that the kernel runs over its sockets before it lists them (net/ipv4/inet_diag.c: inet_diag_bc_run).
package load

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Specification constants (linux/inet_diag.h).
const (
	opJump            = 1 // INET_DIAG_BC_JMP
	opLocal           = 7 // INET_DIAG_BC_S_COND
	opSize            = 4 // struct inet_diag_bc_op
	hostConditionSize = 8 // struct inet_diag_hostcond
)

// mostConditions bounds the filter: the kernel tries one after the other, and beyond that looking up addresses here is cheaper.
const mostConditions = 64

// bytecode returns a filter for sockets with one of the local addresses, or nil when there are none, or too many. An IPv4 address
// also lets IPv4 clients of IPv6 sockets through.
//
// For each address: if it is the socket's, jump to the end, which accepts; else go on. The last one jumps beyond the end, which
// rejects.
func bytecode(addresses []netip.AddrPort) (code []byte) {
	if len(addresses) > mostConditions {
		return nil
	}
	for i := len(addresses) - 1; i >= 0; i-- { // backwards: jumps are as long as what follows
		address := addresses[i]
		octets, family := address.Addr().AsSlice(), byte(unix.AF_INET)
		if address.Addr().Is6() {
			family = unix.AF_INET6
		}
		size := opSize + hostConditionSize + len(octets)
		no := size + opSize
		if i == len(addresses)-1 {
			no = size + opSize + opSize // beyond the end
		}
		one := []byte{opLocal, byte(size)}
		one = binary.NativeEndian.AppendUint16(one, uint16(no))
		one = append(one, family, byte(address.Addr().BitLen()), 0, 0)
		one = binary.NativeEndian.AppendUint32(one, uint32(address.Port()))
		one = append(one, octets...)
		one = append(one, opJump, opSize)
		one = binary.NativeEndian.AppendUint16(one, uint16(opSize+len(code)))
		code = append(one, code...)
	}
	return code
}
