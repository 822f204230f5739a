package bench

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

func TestCardsThatSomebodyUsesAreRefused(t *testing.T) {
	idle := netdev.Device{Name: "card", Index: 7, Kind: "device", Driver: "ice", Prefixes: []netip.Prefix{netip.MustParsePrefix("fe80::1/64")}}
	if why := inUse(&idle, nil); why != "" {
		t.Errorf("an idle card: %s", why)
	}
	for reason, change := range map[string]func(*netdev.Device){
		"has an address":     func(d *netdev.Device) { d.Prefixes = append(d.Prefixes, netip.MustParsePrefix("192.0.2.1/24")) },
		"is a veth device":   func(d *netdev.Device) { d.Kind = "veth" },
		"has no driver":      func(d *netdev.Device) { d.Driver = "" },
		"is a part of bond0": func(d *netdev.Device) { d.Master = "bond0" },
		"has XDP program 3":  func(d *netdev.Device) { d.XDPProgram = 3 },
		"carries vlan7":      func(d *netdev.Device) { d.Index = 9 },
	} {
		used := idle
		used.Prefixes = slices.Clone(idle.Prefixes)
		change(&used)
		if why := inUse(&used, []netlink.Link{&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "vlan7", Index: 12, ParentIndex: 9}}}); !strings.Contains(why, reason) {
			t.Errorf("%s: %q", reason, why)
		}
	}
	if err := (Cards{"lo", "lo"}).Check(); err == nil {
		t.Error("one card is taken for two")
	}
	if err := (Cards{"lo", "none"}).Check(); err == nil {
		t.Error("loopback is taken for a card")
	}
}

// Devices come back under their names, up or down as they were, and without a program.
func TestCardsComeBackAsTheyWere(t *testing.T) {
	needRoot(t)
	home, err := netspace.CreateUnnamed()
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	if err := netspace.Connect(netspace.End{Space: home, Interface: "one", MTU: 1500}, netspace.End{Space: home, Interface: "two", MTU: 1500}); err != nil {
		t.Fatal(err)
	}
	if err := home.SetLink("two", false); err != nil {
		t.Fatal(err)
	}
	const rounds, frames = 2, 2000
	var cells []CardCell
	err = home.Do(func() (err error) {
		cells, err = runCards(t.Context(), Options{Rounds: rounds, Repeat: frames, Flows: []uint32{1000}}, Cards{"one", "two"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(cells) != len(cardPrograms) {
		t.Fatalf("%d cells", len(cells))
	}
	for i, c := range cells {
		if c.Program != cardPrograms[i] || c.Flows != 1000 || c.Mode != "native" || c.MinRate <= 0 || c.MinRate > c.Rate || c.Rate > c.MaxRate || c.LostShare < 0 || c.LostShare > 1 {
			t.Errorf("%+v", c)
		}
	}
	for name, up := range map[string]bool{"one": true, "two": false} {
		err := home.Do(func() error {
			device, err := netdev.ReadDevice(name)
			if err == nil && (device.Up != up || device.XDPProgram != 0) {
				t.Errorf("%s came back as %+v", name, device)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
