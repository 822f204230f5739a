package netdev

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// States of sockets that take in what comes, in /proc/net.
const (
	stateListening = "0A" // TCP
	stateUnbound   = "07" // UDP without a peer
)

// Listening returns the addresses that sockets of the calling thread's network namespace take connections (tcp) or datagrams
// (udp) at. An IPv6 wildcard may or may not take IPv4 as well.
func Listening(protocol string) ([]netip.AddrPort, error) {
	state := stateListening
	if protocol == "udp" {
		state = stateUnbound
	}
	var out []netip.AddrPort
	for _, table := range []string{protocol, protocol + "6"} {
		file, err := os.Open("/proc/thread-self/net/" + table)
		if os.IsNotExist(err) && table == protocol+"6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list listening sockets: %w", err)
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 4 || fields[3] != state {
				continue
			}
			if address, ok := parseSocketAddress(fields[1]); ok {
				out = append(out, address)
			}
		}
		file.Close()
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("list listening sockets: %w", err)
		}
	}
	return out, nil
}

// parseSocketAddress reads 0100007F:1F90: words of the address in the host's order, port as a number.
func parseSocketAddress(text string) (netip.AddrPort, bool) {
	host, port, _ := strings.Cut(text, ":")
	words, err := hex.DecodeString(host)
	number, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(words)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for at := 0; at < len(words); at += 4 {
		binary.NativeEndian.PutUint32(words[at:], binary.BigEndian.Uint32(words[at:]))
	}
	address, ok := netip.AddrFromSlice(words)
	return netip.AddrPortFrom(address.Unmap(), uint16(number)), ok
}
