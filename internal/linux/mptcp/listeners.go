package mptcp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Listener is a socket of this host that takes connections of TCP.
type Listener struct {
	At        netip.AddrPort // the address may be a wildcard
	OnlyIPv6  bool           // that of IPv6 takes no IPv4
	Multipath bool           // it is of an application that speaks MPTCP
}

// Specification constants (include/uapi/linux/inet_diag.h).
const (
	diagRequestSize = 56 // struct inet_diag_req_v2
	diagMessageSize = 72 // struct inet_diag_msg

	diagOnlyIPv6 = 11 // INET_DIAG_SKV6ONLY
	diagULP      = 19 // INET_DIAG_ULP_INFO
	ulpName      = 1  // INET_ULP_INFO_NAME
)

// diagRequest asks for the sockets that listen, of one address family, with what the kernel adds to INET_DIAG_INFO alone.
type diagRequest uint8

func (family diagRequest) Len() int { return diagRequestSize }

func (family diagRequest) Serialize() []byte {
	b := make([]byte, diagRequestSize)
	b[0], b[1], b[2] = byte(family), unix.IPPROTO_TCP, 1<<(netlink.INET_DIAG_INFO-1)
	binary.NativeEndian.PutUint32(b[4:], 1<<netlink.TCP_LISTEN)
	return b
}

// Listeners returns those of this network namespace. To know who speaks MPTCP takes CAP_NET_ADMIN.
func Listeners() (list []Listener, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		r := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		r.AddData(diagRequest(family))
		messages, err := r.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
		if err != nil {
			return nil, fmt.Errorf("list listeners: %w", err)
		}
		for _, message := range messages {
			if len(message) < diagMessageSize {
				return nil, fmt.Errorf("list listeners: a message of %d bytes", len(message))
			}
			address, length := message[8:], 4
			if message[0] == unix.AF_INET6 {
				length = 16
			}
			ip, _ := netip.AddrFromSlice(address[:length])
			attributes, err := nl.ParseRouteAttr(message[diagMessageSize:])
			if err != nil {
				return nil, fmt.Errorf("list listeners: %w", err)
			}
			list = append(list, Listener{
				At:        netip.AddrPortFrom(ip, binary.BigEndian.Uint16(message[4:])),
				OnlyIPv6:  slices.ContainsFunc(attributes, isOnlyIPv6),
				Multipath: slices.ContainsFunc(attributes, isMultipath),
			})
		}
	}
	return list, nil
}

func isOnlyIPv6(a syscall.NetlinkRouteAttr) bool {
	return a.Attr.Type&nl.NLA_TYPE_MASK == diagOnlyIPv6 && len(a.Value) > 0 && a.Value[0] != 0
}

// isMultipath tells whether an attribute says that the socket is one of MPTCP's.
func isMultipath(a syscall.NetlinkRouteAttr) bool {
	if a.Attr.Type&nl.NLA_TYPE_MASK != diagULP {
		return false
	}
	nested, err := nl.ParseRouteAttr(a.Value)
	return err == nil && slices.ContainsFunc(nested, func(n syscall.NetlinkRouteAttr) bool {
		return n.Attr.Type&nl.NLA_TYPE_MASK == ulpName && strings.TrimRight(string(n.Value), "\x00") == "mptcp"
	})
}

// ListensAt tells whether what comes to an address and port gets to a listener with MPTCP: the one that is bound to most of it.
func ListensAt(list []Listener, at netip.AddrPort) bool {
	wildcards := []netip.Addr{netip.IPv6Unspecified()}
	if at.Addr().Is4() {
		wildcards = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	}
	for _, address := range append([]netip.Addr{at.Addr()}, wildcards...) {
		there, multipath := false, false
		for _, l := range list {
			if l.At.Port() == at.Port() && !(l.OnlyIPv6 && at.Addr().Is4()) && (l.At.Addr() == address || l.At.Addr().Unmap() == address) {
				there, multipath = true, multipath || l.Multipath
			}
		}
		if there {
			return multipath
		}
	}
	return false
}
