package netdev

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LocalAddresses returns the addresses of all devices of the calling thread's network namespace, loopback's own left out.
func LocalAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this host's addresses: %w", err)
	}
	var addresses []netip.Addr
	for _, entry := range list {
		if prefix, err := netip.ParsePrefix(entry.String()); err == nil && !prefix.Addr().IsLoopback() {
			addresses = append(addresses, prefix.Addr().Unmap())
		}
	}
	return addresses, nil
}

// Local reports whether this host takes packets to an address as its own by its routes, which may be without having the address.
func Local(address netip.Addr) bool {
	routes, err := netlink.RouteGet(address.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// InterfacesOf returns the names of the devices that hold the addresses, but for loopback; none is no error.
func InterfacesOf(addresses []netip.Addr) (names []string, err error) {
	devices, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list this host's devices: %w", err)
	}
	for _, device := range devices {
		list, err := device.Addrs()
		if err != nil || device.Flags&net.FlagLoopback != 0 {
			continue
		}
		if slices.ContainsFunc(list, func(entry net.Addr) bool {
			prefix, err := netip.ParsePrefix(entry.String())
			return err == nil && slices.Contains(addresses, prefix.Addr().Unmap())
		}) {
			names = append(names, device.Name)
		}
	}
	return names, nil
}

// CheckTimestamps tells whether TCP connections of the calling thread's network namespace can carry cookies.
func CheckTimestamps() error {
	value, err := os.ReadFile("/proc/sys/net/ipv4/tcp_timestamps")
	if err != nil {
		return fmt.Errorf("read net.ipv4.tcp_timestamps: %w", err)
	}
	if strings.TrimSpace(string(value)) == "0" {
		return fmt.Errorf("net.ipv4.tcp_timestamps is 0, so connections cannot carry cookies: " +
			"sysctl -w net.ipv4.tcp_timestamps=1, or give the service affinity: hash")
	}
	return nil
}

// routeFeatureMicroseconds is RTAX_FEATURE_TCP_USEC_TS.
const routeFeatureMicroseconds = 1 << 4

// MicrosecondRoutes lists the routes whose connections use microsecond timestamps, which leave no room for a cookie.
func MicrosecondRoutes() (problems []string) {
	everyTable := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, everyTable, netlink.RT_FILTER_TABLE)
	if err != nil {
		return []string{fmt.Sprintf("list routes: %v", err)}
	}
	for _, route := range routes {
		if route.Features&routeFeatureMicroseconds != 0 {
			problems = append(problems, fmt.Sprintf("route %s has features tcp_usec_ts, whose timestamps leave no room for a cookie: "+
				"ip route change it without", route.Dst))
		}
	}
	return problems
}

// EgressDevices returns the devices that routes through a gateway, and default routes, lead out of, in whatever table: answers to clients that are
// not neighbours leave there. Those without Ethernet addresses (tun, WireGuard, IP tunnels) are told apart: no program of ours reads their frames.
// The family is AF_INET, AF_INET6, or AF_UNSPEC for both.
func EgressDevices(family int) (names, bare []string, err error) {
	everyTable := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	routes, err := netlink.RouteListFiltered(family, everyTable, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, nil, fmt.Errorf("list this host's routes: %w", err)
	}
	found := map[int]bool{}
	for _, route := range routes {
		if route.Type != unix.RTN_UNICAST {
			continue
		}
		everywhere := route.Dst == nil || isDefault(route.Dst)
		if route.LinkIndex != 0 && (everywhere || route.Gw != nil || route.Via != nil) {
			found[route.LinkIndex] = true
		}
		for _, hop := range route.MultiPath {
			found[hop.LinkIndex] = true
		}
	}
	for index := range found {
		device, err := net.InterfaceByIndex(index)
		switch {
		case err != nil || device.Flags&net.FlagLoopback != 0:
		case len(device.HardwareAddr) == 6:
			names = append(names, device.Name)
		default:
			bare = append(bare, device.Name)
		}
	}
	slices.Sort(names)
	slices.Sort(bare)
	return names, bare, nil
}

func isDefault(destination *net.IPNet) bool {
	ones, _ := destination.Mask.Size()
	return ones == 0
}
