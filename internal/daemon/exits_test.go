package daemon_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/netspace"
	"github.com/ballast-lb/ballast/internal/linux/link"
)

// A native program's redirect to a device that does not accept frames loses them without a trace: plain traffic and health checks pass.
func TestALoadBalancerIsNotReadyWhileADeviceThatNextHopsLeaveByDropsItsFrames(t *testing.T) {
	noRaces(t)
	h := newLBHost(t)
	second := func(space *netspace.Space, address string) netspace.End {
		return netspace.End{Space: space, Interface: "eth1", Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}
	}
	require(t, netspace.Connect(second(h.space, "10.8.0.1/24"), second(h.peer, "10.8.0.2/24")))
	h.with(", {name: s3, address: 10.8.0.2, id: 3}")
	h.start()
	refused := func(s api.LBStatus) bool {
		return !s.Ready && strings.Contains(strings.Join(s.NotReady, "\n"), "ballast pass --interface eth1")
	}
	h.await("the refusal", refused)
	onEth1 := func(do func(*net.Interface) error) {
		require(t, h.peer.Do(func() error {
			device, err := net.InterfaceByName("eth1")
			if err != nil {
				return err
			}
			return do(device)
		}))
	}
	onEth1(func(device *net.Interface) error {
		_, err := link.AttachPass(device)
		return err
	})
	h.await("the peer's program", func(s api.LBStatus) bool { return s.Ready })
	onEth1(link.DetachPass)
	h.await("the refusal again", refused)
	require(t, h.space.Do(func() error {
		device, err := netlink.LinkByName("eth1")
		if err != nil {
			return err
		}
		return netlink.LinkDel(device)
	}))
	h.await("readiness without the device", func(s api.LBStatus) bool { return s.Ready })
}
