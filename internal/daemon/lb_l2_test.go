package daemon_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/segment"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const l2File = `
keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: 1
  cookie: {1: 00112233445566778899aabbccddee%s}
services:
  - {name: web, vip: "%s", ports: [80], servers: [{name: s1, address: "%s", id: 1}]}
nodes:
  - {name: lb1, state: %s, l2: {interface: eth0, announce_delay: 100ms}}
  - {name: lb2, l2: {interface: eth0, announce_delay: 100ms}}
`

// l2Family is a VIP, and the server that it is sent to.
type l2Family struct{ vip, server string }

var l2Families = map[string]l2Family{"IPv4": {"198.51.100.10", "10.9.0.9"}, "IPv6": {"2001:db8:100::10", "fd09::9"}}

// l2Segment is a bridge with two load balancers. On it is a host that is the client, and all servers.
type l2Segment struct {
	t *testing.T
	l2Family
	space *netspace.Space
	lbs   [2]*lbHost
	macs  []string // of the load balancers, and of further hosts
}

func newL2Segment(t *testing.T, family l2Family) *l2Segment {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := &l2Segment{t: t, l2Family: family, space: newSpace(t, "segment")}
	require(t, s.space.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	require(t, s.space.AddBridge("br0", 1500, netip.MustParsePrefix("10.9.0.9/24"), netip.MustParsePrefix("fd09::9/64")))
	for i := range s.lbs {
		daemon := newDaemon(t, fmt.Sprintf("l2-lb%d", i+1), newSpace(t, fmt.Sprintf("l%d", i+1)))
		s.lbs[i] = &lbHost{daemon}
		s.join(daemon.space, i+1)
	}
	require(t, s.space.Route(s.prefix(), 0, netspace.NextHop{Interface: "br0"}))
	return s
}

// join has a host be on the segment, by the number of its addresses.
func (s *l2Segment) join(host *netspace.Space, number int) {
	s.t.Helper()
	require(s.t, host.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	port := fmt.Sprintf("p%d", number)
	own := end(host, []string{fmt.Sprintf("10.9.0.%d/24", number), fmt.Sprintf("fd09::%d/64", number)})
	require(s.t, netspace.Connect(own, netspace.End{Space: s.space, Interface: port, Bridge: "br0"}))
	require(s.t, s.space.Do(func() error {
		device, err := net.InterfaceByName(port)
		if err != nil {
			return err
		}
		return attachPass(device)
	}))
	mac, err := host.MAC("eth0")
	require(s.t, err)
	s.macs = append(s.macs, mac.String())
}

func (s *l2Segment) prefix() netip.Prefix {
	address := netip.MustParseAddr(s.vip)
	return netip.PrefixFrom(address, address.BitLen())
}

// serve puts the VIP on lo, as where a load balancer is a server as well. Its stack would answer ARP for it.
func (s *l2Segment) serve() {
	s.t.Helper()
	for _, h := range s.lbs {
		require(s.t, h.space.AddAddress("lo", s.prefix()))
	}
}

// at is the host that the client's kernel finds a VIP at, by asking anew; -1: none.
func (s *l2Segment) at() int {
	s.t.Helper()
	var socket net.Conn
	require(s.t, s.space.Do(func() (err error) {
		exec.Command("ip", "neigh", "del", s.vip, "dev", "br0").Run() // there may be none
		socket, err = net.Dial("udp", net.JoinHostPort(s.vip, "9"))
		return err
	}))
	defer socket.Close()
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		socket.Write([]byte("x")) // what asks
		if at := s.cached(); at >= 0 {
			return at
		}
	}
	return -1
}

// cached is the load balancer that the client's kernel knows a VIP to be at, without asking: announcements have told it.
func (s *l2Segment) cached() int {
	var out []byte
	require(s.t, s.space.Do(func() (err error) {
		out, err = exec.Command("ip", "neigh", "show", s.vip, "dev", "br0").CombinedOutput()
		return err
	}))
	for i, mac := range s.macs {
		if strings.Contains(string(out), mac) {
			return i
		}
	}
	return -1
}

func (h *lbHost) name() string { return strings.TrimPrefix(h.role, "l2-") }

// status asks a load balancer.
func (s *l2Segment) status(i int) (status api.L2Status, err error) {
	err = s.lbs[i].client.Get(s.t.Context(), api.PathL2, &status)
	return status, err
}

func (s *l2Segment) awaitAt(when string, i int) {
	s.t.Helper()
	await.Nil(s.t, fmt.Sprintf("%s: %s to be at lb%d", when, s.vip, i+1), func() error {
		if at := s.at(); at != i {
			return fmt.Errorf("it is at %d", at+1)
		}
		return nil
	})
}

func (s *l2Segment) awaitOwner(when string, asked int, owner string) {
	s.t.Helper()
	await.Nil(s.t, fmt.Sprintf("%s: lb%d to see the VIP at %q", when, asked+1, owner), func() error {
		status, err := s.status(asked)
		if err == nil && (len(status.VIPs) != 1 || status.VIPs[0].Owner != owner || status.VIPs[0].Owned != (owner == s.lbs[asked].name())) {
			err = fmt.Errorf("%+v", status)
		}
		return err
	})
}

func (s *l2Segment) file(key, state string) string {
	return fmt.Sprintf(l2File, key, s.vip, s.server, state)
}

func (s *l2Segment) write(key, state string) {
	for _, h := range s.lbs {
		h.write(s.file(key, state))
	}
}

// onSegments runs a test in either family, where the first load balancer owns the VIP and nobody else is there yet.
func onSegments(t *testing.T, test func(t *testing.T, s *l2Segment)) {
	for name, family := range l2Families {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			noRaces(t)
			s := newL2Segment(t, family)
			s.write("ff", "active")
			s.lbs[0].start()
			s.awaitAt("alone", 0)
			test(t, s)
		})
	}
}

// Promise: Without a router, a VIP is found on the segment at one load balancer; it moves when that dies, is drained or
// cannot forward, and not when its daemon does.
func TestAVIPIsFoundOnASegmentAtOneLoadBalancer(t *testing.T) {
	onSegments(t, func(t *testing.T, s *l2Segment) {
		s.lbs[1].start()
		s.awaitOwner("with another one", 1, "lb1")
		s.serve()
		s.awaitAt("with another one", 0)

		s.lbs[0].kill()
		s.awaitAt("without the owner's daemon", 0)
		s.awaitOwner("without the owner's daemon", 1, "lb1")
		s.lbs[0].start()
		s.awaitOwner("with the owner's daemon back", 0, "lb1")
		s.awaitOwner("with the owner's daemon back", 1, "lb1")
		s.awaitAt("with the owner's daemon back", 0)

		s.write("ff", "draining")
		await.True(t, "the announcement that it has moved", func() bool { return s.cached() == 1 })
		s.awaitAt("after a drain", 1)
		s.awaitOwner("after a drain", 0, "lb2")
		s.write("ff", "active")
		s.awaitOwner("after the drain's end", 0, "lb2") // sticky

		require(t, s.space.SetLink("p2", false))
		s.awaitAt("with the owner's link down", 0)
		s.awaitOwner("with the owner's link down", 0, "lb1")
		s.lbs[1].await("that lb2 says so", func(st api.LBStatus) bool {
			return strings.Contains(fmt.Sprint(st.Problems), "l2: interface eth0 is down")
		})
		require(t, s.space.SetLink("p2", true))
		s.awaitOwner("with the link back", 1, "lb1")
		s.awaitAt("with the link back", 0)

		s.lbs[0].kill()
		require(t, s.lbs[0].space.Sysctl("net/ipv4/conf/all/arp_ignore", "1"))
		require(t, s.lbs[0].remove("test"))
		s.awaitAt("after --detach", 1)
		s.awaitOwner("after --detach", 1, "lb2")
	})
}

// awaitMove waits until the client finds the VIP elsewhere. Somebody answers it all the time.
func (s *l2Segment) awaitMove(when string, to int) {
	s.t.Helper()
	await.True(s.t, fmt.Sprintf("%s: %s to be at lb%d", when, s.vip, to+1), func() bool {
		at := s.at()
		if at < 0 {
			s.t.Fatalf("%s: nobody answers", when)
		}
		return at == to
	})
}

// lapse has the data path of a load balancer be without its daemon for long, as far as it can tell.
func (s *l2Segment) lapse(i int) {
	s.t.Helper()
	answers, err := segment.OpenAnswers(filepath.Join(s.lbs[i].runDir(), "bpf", "test"))
	require(s.t, err)
	require(s.t, errors.Join(answers.SetUntil(1), answers.Close()))
}

// Promise: A VIP whose load balancer is without its daemon for longer than a restart takes moves to one that could carry it, if there is one.
func TestAVIPWhoseDaemonIsAwayForLongMoves(t *testing.T) {
	onSegments(t, func(t *testing.T, s *l2Segment) {
		s.lbs[0].kill()
		s.lapse(0)
		s.awaitAt("alone, without a daemon for long", 0)
		s.lbs[0].start()
		s.awaitOwner("alone, with the daemon back", 0, "lb1")
		s.lbs[1].start()
		s.serve()
		await.Nil(t, "lb2 could take it", func() error {
			status, err := s.status(0)
			if err == nil && (len(status.VIPs) != 1 || status.VIPs[0].Next != "lb2") {
				err = fmt.Errorf("%+v", status)
			}
			return err
		})

		s.lbs[0].kill()
		s.awaitMove("without the owner's daemon", 1)
		s.awaitOwner("without the owner's daemon", 1, "lb2")
		s.lbs[0].start()
		s.awaitOwner("with the daemon back", 0, "lb2")
		s.awaitAt("with the daemon back", 1)

		require(t, s.lbs[1].process.Process.Signal(unix.SIGSTOP))
		s.awaitMove("while the owner's daemon hangs", 0)
		require(t, s.lbs[1].process.Process.Signal(unix.SIGCONT))
		s.awaitOwner("when it goes on", 1, "lb1")
		s.awaitAt("when it goes on", 0)

		for i := range s.lbs {
			s.lbs[i].kill()
			s.lapse(i)
		}
		s.awaitAt("without any daemon for long", 0)
		s.lbs[1].start()
		s.awaitMove("with another one's daemon back", 1)
		s.lbs[0].start()
		s.awaitOwner("with both back", 0, "lb2")
		s.awaitAt("with both back", 1)
	})
}

func TestAdvertisementsOfOtherFleetsAreRefused(t *testing.T) {
	t.Parallel()
	noRaces(t)
	s := newL2Segment(t, l2Families["IPv4"])
	s.write("ff", "active")
	s.lbs[1].write(s.file("fe", "active"))
	s.lbs[0].start()
	s.awaitAt("alone", 0)
	s.lbs[1].start()
	not := "advertisements of " + s.macs[1] + " are not believed: it has no key of this fleet"
	s.lbs[0].await("that it is said", func(st api.LBStatus) bool { return strings.Contains(fmt.Sprint(st.Problems), not) })
	s.awaitOwner("beside another fleet", 0, "lb1")
	s.lbs[1].kill()
	require(t, s.lbs[1].remove("test"))
	require(t, os.RemoveAll(filepath.Join(s.lbs[1].dir, "state")))
	s.write("ff", "active")
	s.lbs[1].start()
	s.lbs[0].await("that it is over", func(st api.LBStatus) bool { return !strings.Contains(fmt.Sprint(st.Problems), not) })
	s.awaitOwner("with the keys", 1, "lb1")
}

func TestADeviceThatTheLoadBalancerIsNotAttachedToIsNoPlaceForVIPs(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.second()
	h.role = "l2-lb1"
	h.write(strings.ReplaceAll(fmt.Sprintf(l2File, "ff", "198.51.100.10", "10.9.0.2", "active"), "interface: eth0", "interface: eth1"))
	h.start()
	const why = "no VIP can be announced: l2: packets that come in by eth1 are not forwarded: start this load balancer with --interface eth1"
	h.await("the reason", func(s api.LBStatus) bool { return !s.Ready && slices.Contains(s.NotReady, why) })
	var status api.L2Status
	require(t, h.client.Get(t.Context(), api.PathL2, &status))
	for _, v := range status.VIPs {
		if v.Owned {
			t.Errorf("%s is owned", v.VIP)
		}
	}
}

// Promise: A load balancer that announces VIPs on a segment alone is not ready while the interface is not there, and is at once when it is; one that is drained has
// nothing to announce.
func TestALoadBalancerWithoutTheInterfaceOfItsVIPsIsNotReady(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newLBHost(t)
	h.role = "l2-lb1"
	file := strings.ReplaceAll(fmt.Sprintf(l2File, "ff", "198.51.100.10", "10.9.0.2", "active"), "interface: eth0", "interface: eth9")
	h.write(file)
	h.start()
	h.await("the reason", func(s api.LBStatus) bool {
		return !s.Ready && slices.Equal(s.NotReady, []string{"no VIP can be announced: l2: there is no interface eth9"})
	})
	h.awaitFile(h.write(strings.ReplaceAll(file, "state: active", "state: draining")))
	h.await("it is drained", func(s api.LBStatus) bool { return s.Ready })
	h.awaitFile(h.write(file))
	h.await("it is to announce again", func(s api.LBStatus) bool { return !s.Ready })
	h.awaitFile(h.write(strings.ReplaceAll(file, "eth9", "eth0")))
	h.await("the interface is there", func(s api.LBStatus) bool { return s.Ready })
}
