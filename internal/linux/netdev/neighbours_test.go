package netdev_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// lookUp looks addresses up, and keeps their neighbours.
func lookUp(kept *netdev.Kept, addresses ...string) error {
	resolver := kept.Resolver(&netdev.Routes{})
	for _, address := range addresses {
		if _, err := resolver.Lookup(netip.MustParseAddr(address)); err != nil && !errors.Is(err, netdev.ErrUnresolved) {
			return err
		}
	}
	return kept.Release()
}

// keptOf are the neighbours that the kernel keeps for us, as `ip` shows them in the calling thread's namespace.
func keptOf() (kept []string, err error) {
	out, err := exec.Command("ip", "neigh", "show", "proto", "181").Output()
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if fields := strings.Fields(line); slices.Contains(fields, "managed") && slices.Contains(fields, "extern_learn") {
			kept = append(kept, fields[0])
		}
	}
	slices.Sort(kept)
	return kept, err
}

func TestNextHopsAreKeptResolvedAndReleasedWhenTheyAreNoneAnyMore(t *testing.T) {
	space := newSpace(t) // 10.8.0.2 and fd08::2 are there for good
	var first, second, other netdev.Kept
	for _, step := range []struct {
		what string
		do   func() error
		kept string
	}{
		{"three next hops, one by a router", func() error {
			return lookUp(&first, "10.8.0.3", "10.8.0.4", "fd08::3", "10.8.0.2", "fd08::2", "192.0.2.1")
		},
			"[10.8.0.3 10.8.0.4 10.8.0.9 fd08::3]"},
		{"the same again", func() error {
			return lookUp(&first, "10.8.0.3", "10.8.0.4", "fd08::3", "10.8.0.2", "fd08::2", "192.0.2.1")
		},
			"[10.8.0.3 10.8.0.4 10.8.0.9 fd08::3]"},
		{"one less of each family, and another", func() error { return lookUp(&first, "10.8.0.3", "10.8.0.5", "192.0.2.1") }, "[10.8.0.3 10.8.0.5 10.8.0.9]"},
		{"a look that keeps nothing takes nothing away", func() error {
			_, err := netdev.NewResolver().Lookup(netip.MustParseAddr("10.8.0.3"))
			if !errors.Is(err, netdev.ErrUnresolved) {
				return fmt.Errorf("10.8.0.3: %v", err)
			}
			return nil
		}, "[10.8.0.3 10.8.0.5 10.8.0.9]"},
		{"the next process, which wants one of them", func() error { return lookUp(&second, "10.8.0.5") }, "[10.8.0.5]"},
		{"another instance", func() error { return lookUp(&other, "10.8.0.5", "10.8.0.6") }, "[10.8.0.5 10.8.0.6]"},
		{"which wants less", func() error { return lookUp(&other, "10.8.0.6") }, "[10.8.0.6]"},
		{"what both want is kept again", func() error { return lookUp(&second, "10.8.0.5") }, "[10.8.0.5 10.8.0.6]"},
		{"and the other leaves it alone", func() error { return lookUp(&other, "10.8.0.6") }, "[10.8.0.5 10.8.0.6]"},
		{"all instances are detached", netdev.ReleaseNeighbours, "[]"},
		{"which may be said twice", netdev.ReleaseNeighbours, "[]"},
	} {
		check(t, space.Do(func() error {
			if step.what == "three next hops, one by a router" {
				if err := routeBy("192.0.2.1", "10.8.0.9"); err != nil {
					return err
				}
			}
			if err := step.do(); err != nil {
				return fmt.Errorf("%s: %w", step.what, err)
			}
			kept, err := keptOf()
			if fmt.Sprint(kept) != step.kept {
				t.Errorf("%s: kept are %v, want %s", step.what, kept, step.kept)
			}
			return err
		}))
	}
	check(t, space.Do(func() error { // what people have said is theirs
		for _, address := range []string{"10.8.0.2", "fd08::2"} {
			if hop, err := netdev.NewResolver().Lookup(netip.MustParseAddr(address)); err != nil || net.HardwareAddr(hop.Destination[:]).String() != neighbourMAC.String() {
				t.Errorf("%s: %+v, %v", address, hop, err)
			}
		}
		list, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		for _, n := range list {
			if n.IP.String() == "10.8.0.2" && n.State != netlink.NUD_PERMANENT {
				t.Errorf("10.8.0.2 is in state %#x", n.State)
			}
		}
		return err
	}))
}

// Others' entries, as routing daemons and CNIs have them, stay theirs.
func TestNeighboursThatOthersKeepStayTheirs(t *testing.T) {
	space := newSpace(t)
	const theirs = "10.8.0.7"
	check(t, space.Do(func() error {
		if out, err := exec.Command("ip", "neigh", "add", theirs, "dev", "eth0", "managed", "extern_learn", "protocol", "zebra").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var kept netdev.Kept
		if err := errors.Join(lookUp(&kept, theirs), lookUp(&kept), netdev.ReleaseNeighbours()); err != nil {
			return err
		}
		out, err := exec.Command("ip", "neigh", "show", theirs).Output()
		if line := string(out); !strings.Contains(line, "managed extern_learn") || !strings.Contains(line, "proto zebra") {
			t.Errorf("it is %q", line)
		}
		return err
	}))
}

func routeBy(destination, gateway string) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: net.ParseIP(destination), Mask: net.CIDRMask(32, 32)}, Gw: net.ParseIP(gateway)})
}
