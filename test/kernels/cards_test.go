// Fleets on one kind of network card: make test-cards runs them in virtual machines whose cards are of one model each.
package kernels

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

var (
	model  = flag.String("model", "", "all -cards are of one `MODEL` that the tests of cards are about: three pairs for the fleet with one card for each node, two for the load balancer with two cards, then one for each other test")
	ask    = flag.String("ask", "auto", "`MODE` that daemons are started with on them")
	become = flag.String("become", "native", "`MODE` that has to come of it")
)

// Pairs of cards that the tests take, in their order.
const (
	pairsOfOneCard  = nodes
	pairsOfTwoCards = twoArms
	cardsOfATest    = 2
)

// row prints what the table of make test-cards has.
func row(t *testing.T, name, format string, args ...any) {
	t.Helper()
	t.Logf("card: %s: %s", name, fmt.Sprintf(format, args...))
}

// TestCards: as the driver of the card is, with the offloads that it comes with, a fleet loses nothing by one card and by two, by a VLAN, with jumbo
// frames, and when the device is set down and up; and the kernel has nothing to complain about.
func TestCards(t *testing.T) {
	if *model == "" {
		t.Skip("without -model: make test-cards")
	}
	left := strings.FieldsFunc(*cards, func(r rune) bool { return r == ',' })
	mode := attach.XDPMode(*ask)
	take := func(pairs int) (taken []string) {
		taken, left = left[:2*pairs], left[2*pairs:]
		return taken
	}
	driver(t, left[0])
	one := take(pairsOfOneCard)
	t.Run("one-card", func(t *testing.T) { newFleet(t, mode, one, 1).works() })
	two := take(pairsOfTwoCards)
	t.Run("two-cards", func(t *testing.T) { newFleet(t, mode, two, twoArms).works() })
	tagged := take(1)
	t.Run("vlan", func(t *testing.T) {
		f := newFleet(t, mode, tagged, 1)
		f.tag(5)
		f.works()
	})
	large := take(1)
	t.Run("jumbo", func(t *testing.T) { jumbo(newFleet(t, mode, large, 1)) })
	flapping := take(1)
	t.Run("flap", func(t *testing.T) { flap(newFleet(t, mode, flapping, 1)) })
	t.Run("kernel", quiet)
}

// driver prints what the card is and comes with.
func driver(t *testing.T, card string) {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	name, err := tool.DriverName(card)
	features, err2 := tool.Features(card)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	var on []string
	for _, feature := range slices.Sorted(maps.Keys(features)) {
		for _, short := range []string{"rx-checksum", "rx-lro", "rx-gro-hw", "rx-vlan-hw-parse", "tx-checksum-ip-generic", "tx-tcp-segmentation"} {
			if feature == short && features[feature] {
				on = append(on, short)
			}
		}
	}
	row(t, "driver", "%s", name)
	row(t, "receive queues", "%d", queues(card))
	row(t, "offloads", "%s", strings.Join(on, " "))
}

// became holds the mode of the load balancer's program against the one that is expected. Of a second card drivers may want a program, too, or not:
// what counts is that frames leave by it.
func (f *fleet) became(want attach.XDPMode) {
	f.t.Helper()
	f.must(f.spaces["lb"].Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if _, got, attached := attach.XDPOn(link.Attrs().Index); !attached || got != want {
			return fmt.Errorf("the load balancer runs its program in %q mode, not in %q", got, want)
		}
		return nil
	}))
}

// tag moves the load balancer's addresses to a VLAN of its card, which stays the device that it is started with.
func (f *fleet) tag(vlan int) {
	f.t.Helper()
	child := func(node, parent string) netlink.Link {
		var made netlink.Link
		f.must(f.spaces[node].Do(func() error {
			on, err := netlink.LinkByName(parent)
			if err != nil {
				return err
			}
			made = &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("%s.%d", parent, vlan), ParentIndex: on.Attrs().Index, MTU: 1600}, VlanId: vlan}
			return errors.Join(netlink.LinkAdd(made), netlink.LinkSetUp(made))
		}))
		return made
	}
	inner, port := child("lb", "eth0"), child("router", "lb")
	f.must(f.spaces["lb"].Do(func() error {
		on, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, prefix := range prefixes("10.60.0.10/24", "fd60::10/64") {
			address, err := netlink.ParseAddr(prefix.String())
			if err != nil {
				return err
			}
			if err := errors.Join(netlink.AddrDel(on, address), netlink.AddrAdd(inner, address)); err != nil {
				return fmt.Errorf("move %s to VLAN %d: %w", prefix, vlan, err)
			}
		}
		return nil
	}))
	for to, gateway := range map[string]string{"0.0.0.0/0": "10.60.0.1", "::/0": "fd60::1"} {
		f.must(f.spaces["lb"].Route(netip.MustParsePrefix(to), 0, netspace.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: inner.Attrs().Name}))
	}
	f.must(f.spaces["router"].Do(func() error {
		untagged, err := netlink.LinkByName("lb")
		if err != nil {
			return err
		}
		bridge, err := netlink.LinkByName("fabric")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetNoMaster(untagged), netlink.LinkSetMaster(port, bridge))
	}))
}

// resize gives devices of a node another MTU.
func (f *fleet) resize(mtu int, node string, devices ...string) error {
	return f.spaces[node].Do(func() error {
		for _, device := range devices {
			link, err := netlink.LinkByName(device)
			if err == nil {
				err = netlink.LinkSetMTU(link, mtu)
			}
			if err != nil {
				return fmt.Errorf("set %s of %s to %d bytes: %w", device, node, mtu, err)
			}
		}
		return nil
	})
}

// jumbo has frames of 9000 bytes between the load balancer and servers. A driver that takes no native program then says so in time.
func jumbo(f *fleet) {
	const fabric, clients = 9000, 8900
	f.must(f.resize(fabric, "router", "lb", "s1", "s2", "fabric"))
	f.must(f.resize(clients, "router", "clients"))
	f.must(f.resize(clients, "client", "eth0"))
	for _, node := range []string{"lb", "s1", "s2"} {
		f.must(f.resize(fabric, node, "eth0"))
	}
	came := attach.XDPNative
	if *become == "native" {
		command := exec.Command(*binary, append([]string{"lb", "-f", f.file, "--interface", "eth0", "--xdp-mode", "native"}, f.flags("lb")...)...)
		if said := f.refusal(command); said != "" {
			came = attach.XDPGeneric
			row(f.t, "native at MTU 9000", "refused: %s", said)
		} else {
			row(f.t, "native at MTU 9000", "runs")
		}
	} else {
		came = attach.XDPGeneric
	}
	f.serve("s1")
	f.serve("s2")
	f.start("agent", "s1")
	f.start("agent", "s2")
	f.start("lb", "lb")
	f.became(came)
	f.healthy()
	for _, vip := range vips {
		f.exchange(vip)
	}
	row(f.t, "jumbo", "%s", came)
}

// flap sets the load balancer's device down and up, beneath open connections: the driver makes its rings anew, and no connection breaks.
func flap(f *fleet) {
	f.serve("s1")
	f.serve("s2")
	f.start("agent", "s1")
	f.start("agent", "s2")
	f.start("lb", "lb")
	f.became(attach.XDPMode(*become))
	f.healthy()
	var open []*connection
	for range connections {
		for _, vip := range vips {
			c := f.connect(vip)
			defer c.close()
			c.request()
			open = append(open, c)
		}
	}
	f.must(f.spaces["lb"].Sysctl("net.ipv6.conf.eth0.keep_addr_on_down", "1"))
	f.must(f.spaces["lb"].SetLink("eth0", false))
	f.must(f.spaces["lb"].SetLink("eth0", true))
	f.routes("lb", "10.60.0.1", "fd60::1", "0.0.0.0/0", "::/0")
	f.became(attach.XDPMode(*become))
	for _, c := range open {
		c.request()
	}
	f.healthy()
	row(f.t, "flap", "0 of %d broken", len(open))
}

// quiet: the kernel is as it was when it started.
func quiet(t *testing.T) {
	tainted, err := os.ReadFile("/proc/sys/kernel/tainted")
	if err != nil {
		t.Fatal(err)
	}
	const readAll, size = 3, 1 << 20
	log := make([]byte, size)
	n, err := unix.Klogctl(readAll, log)
	if err != nil {
		t.Fatal(err)
	}
	var bad []string
	for line := range strings.Lines(string(log[:n])) {
		for _, word := range []string{"WARNING:", "BUG:", "Oops", "Call Trace", "hw csum failure", "NETDEV WATCHDOG", "Detected Tx Unit Hang", "bad gso"} {
			if strings.Contains(line, word) {
				bad = append(bad, line)
			}
		}
	}
	taint := strings.TrimSpace(string(tainted))
	row(t, "taint", "%s", taint)
	if taint != "0" || len(bad) > 0 {
		t.Errorf("the kernel is tainted (%s), or says %q", taint, bad)
	}
}
