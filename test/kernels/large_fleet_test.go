package kernels

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/attach"
)

var alone = flag.Bool("alone", false, "the machine runs nothing else: fill the kernel's neighbour table, which all namespaces share")

// manyServers are on the load balancer's link: more than the neighbours that the kernel has room for (gc_thresh3 is 1024).
const manyServers = 1500

// neighbours counts those of the load balancer among the servers, with a MAC address, and those that are kept for good.
func (f *fleet) neighbours() (resolved, kept int, err error) {
	err = f.spaces["lb"].Do(func() error {
		list, err := netlink.NeighList(0, netlink.FAMILY_V4)
		for _, n := range list {
			if n.State&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED) == 0 && netip.MustParsePrefix("10.4.0.0/16").Contains(netip.MustParseAddr(n.IP.String())) {
				resolved++
			}
			if n.Flags&netlink.NTF_EXT_LEARNED != 0 || n.FlagsExt&netlink.NTF_EXT_MANAGED != 0 {
				kept++
			}
		}
		return err
	})
	return resolved, kept, err
}

// Promise: Next hops of servers stay resolved beyond the kernel's limit of neighbours (`gc_thresh3`) and without
// the daemon, until `--detach`.
// Also held by TestNextHopsAreKeptResolvedUntilDetach and
// TestNextHopsAreKeptResolvedAndReleasedWhenTheyAreNoneAnyMore.
// Public: kubernetes/kops#4533 (the kernel's table of neighbours is full, and machines are not reached).
func TestEveryServerOfALargeFleetHasAPath(t *testing.T) {
	if !*alone {
		t.Skip("without -alone: the neighbour table is that of the whole machine")
	}
	f := newFleet(t, attach.XDPGeneric, nil, 1)
	var servers []string
	for id := 1; id <= manyServers; id++ {
		servers = append(servers, fmt.Sprintf("{name: s%d, id: %d, address: 10.4.%d.%d}", id, id, 1+id/250, 1+id%250))
	}
	file, _, _ := strings.Cut(fleetFile, "services:")
	f.must(os.WriteFile(f.file, []byte(file+"services: [{name: many, vip: 198.51.100.10, ports: [80], servers: ["+strings.Join(servers, ", ")+"]}]\n"), 0o600))
	f.must(f.spaces["lb"].AddAddress("eth0", netip.MustParsePrefix("10.4.0.1/16")))
	router := f.spaces["router"] // answers for all of them
	f.must(router.Sysctl("net.ipv4.conf.all.arp_ignore", "0"))
	f.must(router.Sysctl("net.ipv4.conf.fabric.arp_ignore", "0"))
	f.must(router.Do(func() error {
		loopback, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for i := range 8 {
			subnet := &net.IPNet{IP: net.IPv4(10, 4, byte(1+i), 0), Mask: net.CIDRMask(24, 32)}
			err = errors.Join(err, netlink.RouteAdd(&netlink.Route{LinkIndex: loopback.Attrs().Index, Dst: subnet, Type: unix.RTN_LOCAL,
				Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}))
		}
		return err
	}))
	stop := f.start("lb", "lb")
	f.await("every server has a neighbour", func() error {
		resolved, kept, err := f.neighbours()
		if err == nil && (resolved < manyServers || kept < manyServers) {
			err = fmt.Errorf("of %d servers %d have, %d are kept", manyServers, resolved, kept)
		}
		return err
	})
	f.doctor("lb", "lb")
	f.reaches("10.60.0.11") // there is room for others
	stop()
	if _, kept, err := f.neighbours(); err != nil || kept > 0 {
		t.Errorf("after --detach %d neighbours are kept: %v", kept, err)
	}
	// Without a load balancer that keeps them there is no room for all.
	text, _ := f.run("lb", "doctor", "--json", "--role", "lb", "-f", f.file, "--interface", "eth0")
	if named := strings.Count(string(text), "net.ipv4.neigh.default.gc_thresh3"); named == 0 {
		t.Errorf("doctor does not name the limit: %.2000s", text)
	}
}

// reaches has the load balancer's kernel resolve a neighbour for a packet of its own.
func (f *fleet) reaches(address string) {
	f.t.Helper()
	f.must(f.spaces["lb"].Do(func() error {
		conn, err := net.Dial("udp", net.JoinHostPort(address, "9"))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("anybody"))
		return err
	}))
	f.await(address+" has a neighbour", func() error {
		return f.spaces["lb"].Do(func() error {
			list, err := netlink.NeighList(0, netlink.FAMILY_V4)
			for _, n := range list {
				if n.IP.String() == address && n.State&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED) == 0 {
					return nil
				}
			}
			return errors.Join(err, errors.New("it has none"))
		})
	})
}
