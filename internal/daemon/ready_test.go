package daemon_test

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// onEth0 changes it in a namespace.
func onEth0(t *testing.T, space *netspace.Space, change func(netlink.Link) error) {
	t.Helper()
	require(t, space.Do(func() error {
		device, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return change(device)
	}))
}

const noCarrier = "interface eth0 is down or has no carrier"

func TestALoadBalancerThatNothingReachesIsNotReady(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.awaitAfterStart()
	ready := func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 }
	h.await("ways to the servers", ready)
	for _, space := range []*netspace.Space{h.space, h.peer} {
		onEth0(t, space, netlink.LinkSetDown)
		h.await("the interface to be seen down", func(s api.LBStatus) bool {
			return says(s.NotReady, noCarrier)
		})
		onEth0(t, space, netlink.LinkSetUp)
		h.await("the interface to be seen up", ready)
	}
}

// The old next hops stay in the tables, as the better guess.
func TestALoadBalancerThatHasLostAllWaysIsNotReady(t *testing.T) {
	t.Parallel()
	h := newLBHost(t)
	h.awaitAfterStart()
	ready := func(s api.LBStatus) bool { return s.Ready && len(s.Problems) == 0 }
	h.await("ways to the servers", ready)
	address, err := netlink.ParseAddr("10.9.0.1/24")
	require(t, err)
	onEth0(t, h.space, func(device netlink.Link) error { return netlink.AddrDel(device, address) })
	h.await("the ways to be missed", func(s api.LBStatus) bool {
		return says(s.NotReady, "no way is known to any of 2 servers")
	})
	onEth0(t, h.space, func(device netlink.Link) error { return netlink.AddrAdd(device, address) })
	h.await("the ways to be back", ready)
}

func TestAnAgentThatNothingReachesIsNotReady(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	ready := func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 }
	h.await("its services", ready)
	for _, space := range []*netspace.Space{h.space, h.peer} {
		onEth0(t, space, netlink.LinkSetDown)
		h.await("the interface to be seen down", func(s api.AgentStatus) bool {
			return says(s.NotReady, noCarrier)
		})
		onEth0(t, space, netlink.LinkSetUp)
		h.await("the interface to be seen up", ready)
	}
}
