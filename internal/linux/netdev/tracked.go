package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A TrackedConnection is one as its client sees it: before translation.
type TrackedConnection struct{ Client, Server netip.AddrPort }

const trackedAttempts = 3 // of a list that changes while it is read

// TrackedTCP lists the TCP connections of a family that the kernel's connection tracking takes for living, in the calling thread's
// network namespace. Cost: about a microsecond for each.
func TrackedTCP(ipv6 bool) (map[TrackedConnection]bool, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if ipv6 {
		family = unix.AF_INET6
	}
	var list []*netlink.ConntrackFlow
	var err error = netlink.ErrDumpInterrupted
	for i := 0; i < trackedAttempts && errors.Is(err, netlink.ErrDumpInterrupted); i++ {
		list, err = netlink.ConntrackTableList(netlink.ConntrackTable, family)
	}
	if err != nil {
		return nil, fmt.Errorf("list tracked connections: %w: it needs nf_conntrack_netlink", err)
	}
	found := map[TrackedConnection]bool{}
	for _, one := range list {
		if info, ok := one.ProtoInfo.(*netlink.ProtoInfoTCP); ok && lives(info.State) {
			found[TrackedConnection{addrPort(one.Forward.SrcIP, one.Forward.SrcPort), addrPort(one.Forward.DstIP, one.Forward.DstPort)}] = true
		}
	}
	return found, nil
}

// lives: one end at least may still send something new.
func lives(state uint8) bool {
	return state == nl.TCP_CONNTRACK_ESTABLISHED || state == nl.TCP_CONNTRACK_FIN_WAIT || state == nl.TCP_CONNTRACK_CLOSE_WAIT
}

func addrPort(address net.IP, port uint16) netip.AddrPort {
	parsed, _ := netip.AddrFromSlice(address)
	return netip.AddrPortFrom(parsed.Unmap(), port)
}
