package kernels

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/doctor"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// TestALoadBalancerWorksByABond: XDP on a bond of two devices; connections outlive the one that is in use, and doctor says which device to name.
//
// Public: facebookincubator/katran#13 (whether XDP works where network cards are bonded), facebookincubator/katran#20 (on the parts of a bond, in
// native mode, nothing is forwarded).
func TestALoadBalancerWorksByABond(t *testing.T) {
	if *model == "" {
		t.Skip("without -model: make test-cards")
	}
	f := newFleet(t, attach.XDPAuto, nil, 1)
	f.bond()
	f.serve("s1")
	f.serve("s2")
	f.start("agent", "s1")
	f.start("agent", "s2")
	f.start("lb", "lb")
	f.healthy()
	var open []*connection
	for range 3 {
		for _, vip := range vips {
			c := f.connect(vip)
			defer c.close()
			c.request()
			open = append(open, c)
		}
	}
	f.doctor("lb", "lb")
	for _, port := range []string{"lb", "lb2"} { // the far end goes: the bond sees no carrier
		f.must(f.spaces["router"].SetLink(port, false))
		for _, c := range open {
			c.request()
		}
		f.must(f.spaces["router"].SetLink(port, true))
		f.await("both parts of the bond are up", func() error { return f.partsAreUp("eth0", "eth1") })
	}
	for _, c := range open {
		c.request()
	}
	text, _ := f.run("lb", "doctor", "--json", "--role", "lb", "-f", f.file, "--interface", "eth0")
	var findings []doctor.Finding
	f.must(json.Unmarshal(text, &findings))
	named := false
	for _, finding := range findings {
		named = named || finding.Severity == doctor.Problem && finding.Subject == "eth0" && strings.Contains(finding.Remedy, "--interface bond0")
	}
	if !named {
		t.Errorf("doctor of a part of the bond does not name the bond: %s", text)
	}
}

// bond makes the load balancer's device, and another one to the same bridge, parts of bond0, which it is started with from now on.
func (f *fleet) bond() {
	f.t.Helper()
	lb, router := f.spaces["lb"], f.spaces["router"]
	f.plug(netspace.End{Space: lb, Interface: "eth1", MTU: 1600}, netspace.End{Space: router, Interface: "lb2", MTU: 1600, Bridge: "fabric"})
	f.must(lb.Do(func() error {
		bond := netlink.NewLinkBond(netlink.LinkAttrs{Name: "bond0", MTU: 1600})
		bond.Mode, bond.Miimon = netlink.BOND_MODE_ACTIVE_BACKUP, 100
		err := netlink.LinkAdd(bond)
		if errors.Is(err, unix.EOPNOTSUPP) {
			f.t.Skip("this kernel has no bonding")
		}
		for _, name := range []string{"eth0", "eth1"} {
			if err != nil {
				return err
			}
			part, found := netlink.LinkByName(name)
			err = errors.Join(found, netlink.LinkSetDown(part), netlink.LinkSetMaster(part, bond), netlink.LinkSetUp(part))
		}
		if err == nil {
			err = netlink.LinkSetUp(bond)
		}
		if err != nil {
			return fmt.Errorf("make a bond: %w", err)
		}
		return nil
	}))
	f.device = "bond0"
	for _, prefix := range prefixes("10.60.0.10/24", "fd60::10/64") {
		f.must(lb.Do(func() error { // it may have gone with the old device's being down
			old, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			address, err := netlink.ParseAddr(prefix.String())
			if err != nil {
				return err
			}
			if err := netlink.AddrDel(old, address); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return err
			}
			return nil
		}))
		f.must(lb.AddAddress("bond0", prefix))
	}
	for to, gateway := range map[string]string{"0.0.0.0/0": "10.60.0.1", "::/0": "fd60::1"} {
		f.must(lb.Route(netip.MustParsePrefix(to), 0, netspace.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: "bond0"}))
	}
}

// partsAreUp tells whether the load balancer's devices have a carrier.
func (f *fleet) partsAreUp(names ...string) error {
	return f.spaces["lb"].Do(func() error {
		for _, name := range names {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if link.Attrs().RawFlags&unix.IFF_LOWER_UP == 0 {
				return fmt.Errorf("%s has no carrier", name)
			}
		}
		return nil
	})
}
