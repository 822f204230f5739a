package programs

import (
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

func TestTheNarrowestDeviceThatTunnelsComeInByIsTold(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	space, err := netspace.CreateUnnamed()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	var wide, narrow, none *ballastv1.Receiver
	err = space.Do(func() error {
		for name, mtu := range map[string]int{"eth0": 1500, "eth1": 1400} {
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, PeerName: "p" + name}); err != nil {
				return err
			}
		}
		wide, narrow, none = Receiver([]string{"eth0"}, nil), Receiver([]string{"eth0", "eth1"}, nil), Receiver([]string{"lo", "eth7"}, nil)
		return nil
	})
	if err != nil || wide.GetMtu() != 1500 || narrow.GetMtu() != 1400 || narrow.Device != "eth1" || none != nil {
		t.Errorf("%v, %v, %v: %v", wide, narrow, none, err)
	}
}

func TestARouteThatAnnouncesNothingSpoilsTheOthers(t *testing.T) {
	routes := []netdev.DefaultRoute{{AdvMSS: 1300}, {AdvMSS: 1360}, {IPv6: true, AdvMSS: 1280}, {IPv6: true}}
	if four, six := announced(routes, false), announced(routes, true); four != 1360 || six != 0 {
		t.Errorf("%d and %d", four, six)
	}
}
