// Connections that the server's own address translation takes elsewhere.
package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/plan"
)

// translatedBatch is how many flows are read at once.
const translatedBatch = 4096

// translatedFlow is struct flow_key.
type translatedFlow struct {
	Service    plan.PortKey
	Client     [16]byte
	ClientPort [2]byte
	Pad        uint16
}

// translatedState is struct hold_back.
type translatedState struct {
	Clock      [6]uint32
	Cookie     uint16
	Before     uint16
	CookieBits uint8 // and above them behind
	State      uint8
	Tag        uint16
}

// echoed is the parity of the epoch that the client has echoed last.
func (s *translatedState) echoed() uint32 {
	return cookie.EpochBit(s.CookieBits&31, uint32(s.Cookie)) ^ uint32(s.CookieBits>>5&1)
}

// countTranslated adds the living connections that the server's own address translation takes elsewhere. No socket tells that one has
// ended; who has translated it knows.
func countTranslated(translated *ebpf.Map, connections *[2]uint64) error {
	flows := map[bool]map[netdev.TrackedConnection]uint32{false: {}, true: {}} // by IPv6
	keys, states := make([]translatedFlow, translatedBatch), make([]translatedState, translatedBatch)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := translated.BatchLookup(&cursor, keys, states, nil)
		for i := range n {
			if states[i].CookieBits&31 == plan.HistoryBits {
				continue
			}
			ipv6 := keys[i].Service.IPv6 != 0
			flows[ipv6][netdev.TrackedConnection{
				Client: wireAddrPort(keys[i].Client, keys[i].ClientPort, ipv6), Server: wireAddrPort(keys[i].Service.Address, keys[i].Service.Port, ipv6),
			}] = states[i].echoed()
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the translated connections: %w", err)
		}
	}
	for ipv6, all := range flows {
		if len(all) == 0 {
			continue
		}
		living, err := netdev.TrackedTCP(ipv6)
		if err != nil {
			return err
		}
		for flow, parity := range all {
			if living[flow] {
				connections[parity]++
			}
		}
	}
	return nil
}

func wireAddrPort(address [16]byte, port [2]byte, ipv6 bool) netip.AddrPort {
	parsed := netip.AddrFrom16(address)
	if !ipv6 {
		parsed = netip.AddrFrom4([4]byte(address[:4]))
	}
	return netip.AddrPortFrom(parsed, binary.BigEndian.Uint16(port[:]))
}
