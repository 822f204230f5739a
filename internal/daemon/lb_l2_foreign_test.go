package daemon_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// formerHost is what had the VIP before, on the segment of two load balancers that name it as predecessor.
type formerHost struct {
	*l2Segment
	host *netspace.Space
}

const former = 2 // of l2Segment.at

func newFormerHost(t *testing.T, family l2Family) *formerHost {
	t.Helper()
	s := &formerHost{l2Segment: newL2Segment(t, family), host: newSpace(t, "former")}
	s.join(s.host, 5)
	s.ip("address", "add", s.prefix().String(), "dev", "eth0")
	return s
}

// ip changes the host as its administrator would.
func (s *formerHost) ip(arguments ...string) {
	s.t.Helper()
	require(s.t, s.host.Do(func() error {
		if out, err := exec.Command("ip", arguments...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", arguments, err, out)
		}
		return nil
	}))
}

func (s *formerHost) address() string {
	if strings.Contains(s.vip, ":") {
		return "fd09::5"
	}
	return "10.9.0.5"
}

// announce writes the files of load balancers.
func (s *formerHost) announce(how string, lbs ...int) {
	for _, i := range lbs {
		file := strings.Replace(s.file("ff", "active"), "ports: [80],", "ports: [80], announce: "+how+", predecessor: {addresses: [\""+s.address()+"\"], share: 0},", 1)
		s.lbs[i].awaitFile(s.lbs[i].write(file))
	}
}

// says waits until load balancers have a problem, or not any more.
func (s *formerHost) says(when, problem string, want bool, lbs ...int) {
	s.t.Helper()
	for _, i := range lbs {
		s.lbs[i].await(when, func(st api.LBStatus) bool { return strings.Contains(strings.Join(st.Problems, "\n"), problem) == want })
	}
}

// Promise: Load balancers that start name the host that answers for a VIP and leave it to it, take it when that host stops or by `announce: force`, and give it
// back by `announce: off`; no host holds up what the fleet has had.
func TestAVIPOfAnotherHostIsTakenWhenThatStopsAndGivenBack(t *testing.T) {
	for name, family := range l2Families {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			noRaces(t)
			s := newFormerHost(t, family)
			who := fmt.Sprintf("%s (%s, predecessor of service web)", s.macs[former], s.address())
			untaken, also := s.vip+" is not taken: "+who+" answers for it: ", who+" also answers for "+s.vip
			vacant := s.vip + " is given up (announce: off, service web), and nobody answers for it"
			for i := range s.lbs {
				s.lbs[i].write("services: []\n")
				s.lbs[i].start()
			}
			s.announce("auto", 0, 1)
			s.says("the host that answers is named", untaken, true, 0, 1)
			s.awaitAt("beside load balancers", former)
			for i := range s.lbs {
				status, err := s.status(i)
				require(t, err)
				if v := status.VIPs[0]; v.Owned || v.Foreign == nil || v.Foreign.String() != who {
					t.Errorf("l2 show of lb%d: %+v", i+1, v)
				}
			}

			// The recipe of docs/run/moving.md.
			s.ip("address", "add", s.prefix().String(), "dev", "lo")
			require(t, s.host.Sysctl("net/ipv4/conf/all/arp_ignore", "1"))
			require(t, s.host.Sysctl("net/ipv4/conf/all/arp_announce", "2"))
			s.ip("address", "del", s.prefix().String(), "dev", "eth0")
			s.says("it has stopped", untaken, false, 0, 1)
			var owner int
			await.True(t, "a load balancer takes it", func() bool { owner = s.at(); return owner == 0 || owner == 1 })
			other := 1 - owner
			s.awaitOwner("taken", other, s.lbs[owner].name())

			// Whoever answers for it now holds up nothing.
			s.ip("address", "add", s.prefix().String(), "dev", "eth0")
			s.says("it answers again", also, true, owner)
			require(t, s.space.SetLink(fmt.Sprintf("p%d", owner+1), false))
			s.awaitOwner("without the owner", other, s.lbs[other].name())
			require(t, s.space.SetLink(fmt.Sprintf("p%d", owner+1), true))
			s.awaitOwner("with the owner back", owner, s.lbs[other].name())
			s.ip("address", "del", s.prefix().String(), "dev", "eth0")
			s.says("it has stopped again", also, false, other)

			s.announce("off", owner) // who is behind takes it yet
			s.awaitAt("given up by one", other)
			s.announce("off", other)
			s.says("nobody has it", vacant, true, 0, 1)
			s.ip("address", "add", s.prefix().String(), "dev", "eth0")
			s.says("it is given back", vacant, false, 0, 1)
			s.awaitAt("given back", former)
			for i := range s.lbs {
				s.lbs[i].end()
				s.lbs[i].start()
				s.awaitOwner("given back, after a restart", i, "")
				if metrics := s.lbs[i].metrics(); strings.Contains(metrics, "ballast_l2_vip_owned{") {
					t.Errorf("an alert would say that nobody announces what is given up")
				}
			}
			s.announce("auto", 0, 1)
			s.says("wanted again", untaken, true, 0, 1)
			s.awaitAt("wanted again", former)

			s.announce("force", owner)
			s.awaitOwner("taken by force", owner, s.lbs[owner].name())
			s.awaitOwner("taken by force", other, s.lbs[owner].name())
		})
	}
}
