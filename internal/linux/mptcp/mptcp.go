// Package mptcp tells the kernel's own MPTCP path manager where clients may join a connection, by generic netlink (include/uapi/linux/mptcp_pm.h).
package mptcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Specification constants (include/uapi/linux/mptcp_pm.h).
const (
	familyName    = "mptcp_pm"
	familyVersion = 1

	commandAdd       = 1
	commandDelete    = 2
	commandGet       = 3
	commandGetLimits = 6

	attributeAddress  = 1
	attributeSubflows = 3

	addressFamily = 1
	addressID     = 2
	addressIPv4   = 3
	addressIPv6   = 4
	addressPort   = 5
	addressFlags  = 6

	flagSignal = 1
)

// EndpointsMax is how many a network namespace has room for (MPTCP_PM_ADDR_MAX, net/mptcp/protocol.h).
const EndpointsMax = 8

// sysctls is where those of MPTCP are, of the network namespace of the thread.
const sysctls = "/proc/sys/net/mptcp/"

// ErrUnknown says that the kernel has no MPTCP, or its module is not there.
var ErrUnknown = errors.New("the kernel has no MPTCP (CONFIG_MPTCP)")

// Endpoint is an address that the kernel announces to clients, or that it uses itself. One with a port is always announced: the kernel takes no other.
type Endpoint struct {
	Address netip.AddrPort // port 0: that of the connection
	ID      uint8
	Signal  bool // it is announced (ADD_ADDR, RFC 8684 3.4.1)
}

// request makes one to the path manager of this network namespace.
func request(command uint8, flags int, attributes ...nl.NetlinkRequestData) ([][]byte, error) {
	family, err := netlink.GenlFamilyGet(familyName)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	r := nl.NewNetlinkRequest(int(family.ID), flags)
	r.AddData(&nl.Genlmsg{Command: command, Version: familyVersion})
	for _, attribute := range attributes {
		r.AddData(attribute)
	}
	return r.Execute(unix.NETLINK_GENERIC, 0)
}

// Endpoints returns all there are, also those of others.
func Endpoints() ([]Endpoint, error) {
	messages, err := request(commandGet, unix.NLM_F_DUMP)
	if err != nil {
		return nil, fmt.Errorf("list endpoints of MPTCP: %w", err)
	}
	var endpoints []Endpoint
	for _, message := range messages {
		attributes, err := nl.ParseRouteAttr(message[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, fmt.Errorf("list endpoints of MPTCP: %w", err)
		}
		for _, attribute := range attributes {
			if attribute.Attr.Type&nl.NLA_TYPE_MASK != attributeAddress {
				continue
			}
			endpoint, err := parse(attribute.Value)
			if err != nil {
				return nil, fmt.Errorf("list endpoints of MPTCP: %w", err)
			}
			endpoints = append(endpoints, endpoint)
		}
	}
	return endpoints, nil
}

func parse(nested []byte) (e Endpoint, err error) {
	attributes, err := nl.ParseRouteAttr(nested)
	if err != nil {
		return e, err
	}
	var address netip.Addr
	var port uint16
	for _, attribute := range attributes {
		value := attribute.Value
		switch kind := attribute.Attr.Type & nl.NLA_TYPE_MASK; {
		case kind == addressIPv4 || kind == addressIPv6:
			address, _ = netip.AddrFromSlice(value)
		case kind == addressPort && len(value) >= 2:
			port = binary.NativeEndian.Uint16(value)
		case kind == addressID && len(value) >= 1:
			e.ID = value[0]
		case kind == addressFlags && len(value) >= 4:
			e.Signal = binary.NativeEndian.Uint32(value)&flagSignal != 0
		}
	}
	e.Address = netip.AddrPortFrom(address, port)
	return e, nil
}

// describe is an IPv4 address as the kernel takes it.
func describe(at netip.AddrPort) *nl.RtAttr {
	address := nl.NewRtAttr(attributeAddress|unix.NLA_F_NESTED, nil)
	address.AddRtAttr(addressFamily, nl.Uint16Attr(unix.AF_INET))
	address.AddRtAttr(addressIPv4, at.Addr().AsSlice())
	address.AddRtAttr(addressPort, nl.Uint16Attr(at.Port()))
	return address
}

// Add lets the kernel listen at an IPv4 address and port of this host, and announce them to all clients with MPTCP. Linux 5.12.
func Add(at netip.AddrPort) error {
	address := describe(at)
	address.AddRtAttr(addressFlags, nl.Uint32Attr(flagSignal))
	if _, err := request(commandAdd, unix.NLM_F_ACK, address); err != nil {
		return fmt.Errorf("announce %s to clients with MPTCP: %w", at, err)
	}
	return nil
}

// Remove ends that, and subflows that have joined there.
func Remove(e Endpoint) error {
	address := describe(e.Address)
	address.AddRtAttr(addressID, nl.Uint8Attr(e.ID))
	if _, err := request(commandDelete, unix.NLM_F_ACK, address); err != nil {
		return fmt.Errorf("no longer announce %s to clients with MPTCP: %w", e.Address, err)
	}
	return nil
}

// Used returns how many connections of this host have each of the IPv4 addresses and ports for their own.
func Used(addresses []netip.AddrPort) (map[netip.AddrPort]uint64, error) {
	sockets, err := netlink.SocketDiagTCP(unix.AF_INET)
	if err != nil {
		return nil, fmt.Errorf("list connections: %w", err)
	}
	used := map[netip.AddrPort]uint64{}
	for _, at := range addresses {
		for _, socket := range sockets {
			local, _ := netip.AddrFromSlice(socket.ID.Source)
			if socket.State != netlink.TCP_LISTEN && socket.State != netlink.TCP_TIME_WAIT && netip.AddrPortFrom(local.Unmap(), socket.ID.SourcePort) == at {
				used[at]++
			}
		}
	}
	return used, nil
}

// Obstacles are settings of this host that keep clients from joining, each with its remedy.
func Obstacles() (found []string) {
	enabled, err := sysctl("enabled")
	if errors.Is(err, ErrUnknown) {
		return []string{ErrUnknown.Error() + ": another kernel, or no mptcp for the service"}
	}
	if err == nil && enabled == 0 {
		found = append(found, "net.mptcp.enabled is 0: no application here can use MPTCP: sysctl -w net.mptcp.enabled=1")
	}
	if manager, err := sysctl("pm_type"); err == nil && manager != 0 {
		found = append(found, fmt.Sprintf("net.mptcp.pm_type is %d: the kernel announces nothing to new connections: sysctl -w net.mptcp.pm_type=0", manager))
	}
	messages, err := request(commandGetLimits, 0)
	if err != nil || len(messages) == 0 {
		return found
	}
	attributes, err := nl.ParseRouteAttr(messages[0][nl.SizeofGenlmsg:])
	for _, attribute := range attributes {
		if err == nil && attribute.Attr.Type == attributeSubflows && len(attribute.Value) >= 4 && binary.NativeEndian.Uint32(attribute.Value) == 0 {
			found = append(found, "the limit of MPTCP's subflows is 0: none can join: ip mptcp limits set subflows 2")
		}
	}
	return found
}

// TakesPlain tells whether connections that join nothing can fill the queue of an endpoint's port: kernels without 3d041393ea8c ("mptcp: prevent MPC
// handshake on port-based signal endpoints", 6.12), which has brought a counter of them.
func TakesPlain() bool {
	counters, err := os.ReadFile("/proc/thread-self/net/netstat")
	return err == nil && takesPlain(string(counters))
}

func takesPlain(counters string) bool {
	return strings.Contains(counters, "MPTcpExt:") && !strings.Contains(counters, " MPCapableEndpAttempt ")
}

// JoinInitial tells whether clients may join at the address and port of a connection's first subflow (RFC 8684 3.1, flag C). Linux 5.15.
func JoinInitial() (bool, error) {
	value, err := sysctl(joinInitial)
	return value != 0, err
}

// SetJoinInitial changes it, for new connections.
func SetJoinInitial(may bool) error {
	value := "0"
	if may {
		value = "1"
	}
	return os.WriteFile(sysctls+joinInitial, []byte(value), 0o644)
}

const joinInitial = "allow_join_initial_addr_port"

func sysctl(name string) (int, error) {
	content, err := os.ReadFile(sysctls + name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("net.mptcp.%s: %w", name, ErrUnknown)
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}
