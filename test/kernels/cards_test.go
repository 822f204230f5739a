// Fleets on one kind of network card: make test-cards runs them in virtual machines whose cards are of one model each.
package kernels

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/doctor"
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
	claim := doctor.Cards[driver(t, left[0])]
	if !slices.Contains(claim.Modes, attach.XDPMode(*become)) {
		row(t, "doctor", "does not claim %s of this driver", *become)
	}
	run := func(name string, pairs int, do func(t *testing.T, taken []string)) {
		if len(left) < 2*pairs {
			t.Run(name, func(t *testing.T) { t.Skipf("needs %d more pairs of cards", pairs) })
			return
		}
		var taken []string
		taken, left = left[:2*pairs], left[2*pairs:]
		t.Run(name, func(t *testing.T) { do(t, taken) })
	}
	run("one-card", pairsOfOneCard, func(t *testing.T, taken []string) {
		f := newFleet(t, mode, taken, 1)
		f.works()
		f.report("one card", attach.XDPMode(*become))
	})
	run("two-cards", pairsOfTwoCards, func(t *testing.T, taken []string) {
		f := newFleet(t, mode, taken, twoArms)
		f.works()
		f.report("two cards", attach.XDPMode(*become))
	})
	run("vlan", 1, func(t *testing.T, taken []string) {
		f := newFleet(t, mode, taken, 1)
		f.tag(5)
		f.works()
		f.report("VLAN 5", attach.XDPMode(*become))
	})
	run("jumbo", 1, func(t *testing.T, taken []string) { jumbo(newFleet(t, mode, taken, 1), claim) })
	run("flap", 1, func(t *testing.T, taken []string) { flap(newFleet(t, mode, taken, 1)) })
	t.Run("kernel", quiet)
}

// driver prints what the card is and comes with, and returns its driver's name.
func driver(t *testing.T, card string) string {
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
	return name
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

// jumbo has frames of 9000 bytes between the load balancer and servers, or what the cards take without Ballast. A driver that takes no native program
// then says so in time.
//
// vmxnet3 of QEMU 7.2 and 10.0 loses frames of more than one buffer, 3072 bytes with 22 for headers, as soon as LRO is off: Linux then names no number
// of buffers for a frame (vmxnet3_setup_driver_shared: maxNumRxSG), which QEMU takes for one (vmxnet3_activate_device: max_rx_frags).
func jumbo(f *fleet, claim doctor.Card) {
	mtu := 9000
	f.widen(mtu)
	came := attach.XDPGeneric
	if *become == string(attach.XDPNative) {
		command := exec.Command(*binary, append([]string{"lb", "-f", f.file, "--interface", "eth0", "--xdp-mode", "native"}, f.flags("lb")...)...)
		if said := f.refusal(command); said != "" {
			row(f.t, fmt.Sprintf("native at MTU %d", mtu), "refused: %s", said)
		} else {
			came = attach.XDPNative
			row(f.t, fmt.Sprintf("native at MTU %d", mtu), "runs")
		}
	}
	if lost := f.losesAlone(mtu); lost != "" {
		if claim.Most == 0 {
			f.t.Fatalf("without Ballast, frames of %d bytes are lost: %s", mtu, lost)
		}
		row(f.t, "without Ballast", "at MTU %d %s", mtu, lost)
		mtu, came = claim.Most, attach.XDPMode(*become)
		f.widen(mtu)
		if lost := f.losesAlone(mtu); lost != "" {
			f.t.Fatalf("without Ballast, frames of %d bytes are lost, too: %s", mtu, lost)
		}
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
	f.report(fmt.Sprintf("MTU %d", mtu), came)
	if claim.MTU > mtu {
		f.t.Errorf("doctor claims MTU %d of this driver, and what came through is %d", claim.MTU, mtu)
	}
}

// widen gives all links between nodes an MTU, and the client's one that leaves room for the tunnel.
func (f *fleet) widen(mtu int) {
	f.t.Helper()
	const room = 100
	f.must(f.resize(mtu, "router", "lb", "s1", "s2", "fabric"))
	f.must(f.resize(mtu-room, "router", "clients"))
	f.must(f.resize(mtu-room, "client", "eth0"))
	for _, node := range []string{"lb", "s1", "s2"} {
		f.must(f.resize(mtu, node, "eth0"))
	}
}

// losesAlone tells what of datagrams that fill an MTU does not come back from a node by the kernel alone, where those of one kilobyte do; empty: nothing.
func (f *fleet) losesAlone(mtu int) string {
	f.t.Helper()
	const small, headers = 1000, 28
	var lost []string
	for node, address := range map[string]string{"lb": "10.60.0.10", "s1": "10.60.0.11", "s2": "10.60.0.12"} {
		var echo, from net.PacketConn
		f.must(f.spaces[node].Do(func() (err error) { echo, err = net.ListenPacket("udp4", address+":0"); return err }))
		f.must(f.spaces["router"].Do(func() (err error) { from, err = net.ListenPacket("udp4", "10.60.0.1:0"); return err }))
		go func() {
			buffer := make([]byte, mtu)
			for {
				n, back, err := echo.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = echo.WriteTo(buffer[:n], back)
			}
		}()
		comes := func(size int) error {
			buffer := make([]byte, mtu)
			if _, err := from.WriteTo(make([]byte, size), echo.LocalAddr()); err != nil {
				return err
			}
			f.must(from.SetReadDeadline(time.Now().Add(time.Second)))
			for {
				if n, _, err := from.ReadFrom(buffer); err != nil || n == size {
					return err
				}
			}
		}
		f.await("datagrams of one kilobyte come back from "+node, func() error { return comes(small) })
		const tries = 5
		came := 0
		for range tries {
			if comes(mtu-headers) == nil {
				came++
			}
		}
		if came == 0 {
			lost = append(lost, fmt.Sprintf("0 of %d came back from %s", tries, node))
		}
		echo.Close()
		from.Close()
	}
	slices.Sort(lost)
	return strings.Join(lost, ", ")
}

// report prints how many requests went through the load balancer's program in its mode. That none was lost was held request by request; what the
// kernels' TCP sent again tells of single packets.
func (f *fleet) report(name string, mode attach.XDPMode) {
	f.t.Helper()
	if f.t.Failed() {
		return
	}
	again := 0
	for _, node := range []string{"client", "s1", "s2"} {
		f.must(f.spaces[node].Do(func() error {
			n, err := sentAgain()
			again += n
			return err
		}))
	}
	row(f.t, name, "%s: %d requests on %d connections, 0 lost; %d segments sent again", mode, f.requests, f.opened, again)
}

// sentAgain counts the TCP segments that the calling thread's network namespace has sent again (RFC 4022, tcpRetransSegs).
func sentAgain() (int, error) {
	text, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		if at := slices.Index(names, "RetransSegs"); at > 0 && at < len(fields) {
			return strconv.Atoi(fields[at])
		}
	}
	return 0, fmt.Errorf("no RetransSegs in %q", text)
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
	f.report("flap", attach.XDPMode(*become))
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
