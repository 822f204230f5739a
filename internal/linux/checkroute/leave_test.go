package checkroute_test

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// shape is what a check could leave behind on the load balancer's host.
func (n *checkNet) shape() string {
	n.Helper()
	var out []string
	progtest.Check(n, n.lb.Do(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: 0}, netlink.RT_FILTER_TABLE)
			progtest.Check(n, err)
			rules, err := netlink.RuleList(family)
			progtest.Check(n, err)
			for _, route := range routes {
				out = append(out, route.String())
			}
			for _, rule := range rules {
				out = append(out, rule.String())
			}
		}
		links, err := netlink.LinkList()
		progtest.Check(n, err)
		for _, l := range links {
			result, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXEgress})
			if err != nil { // no tcx
				result = &link.QueryResult{}
			}
			filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_EGRESS)
			progtest.Check(n, err)
			out = append(out, fmt.Sprintf("%s: %d programs", l.Attrs().Name, len(result.Programs)+len(filters)))
		}
		qdiscs, err := netlink.QdiscList(nil)
		progtest.Check(n, err)
		for _, q := range qdiscs {
			out = append(out, q.Type())
		}
		return nil
	}))
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func TestChecksAttachOnlyWhereTheyMustAndLeaveNothingBehind(t *testing.T) {
	progtest.BothWays(t, checksLeaveNothingBehind)
}

func checksLeaveNothingBehind(t *testing.T) {
	n := newCheckNet(t)
	vip := n.servers[0].vips[0]
	before := n.shape()
	attached := func(what string) {
		t.Helper()
		for _, line := range []string{"eth0: 0 programs", "eth1: 0 programs", "eth2: 1 programs"} {
			if have := n.shape(); !strings.Contains(have, line) {
				t.Errorf("%s: no %q in\n%s", what, line, have)
			}
		}
	}
	n.set(vip, false, nil)
	attached("with targets")
	n.set(vip, false, nil)
	attached("with the same targets again")
	if _, err := n.fetch(0, plainPort); err != nil {
		t.Error(err)
	}
	progtest.Check(t, n.lb.Do(func() error { return n.checks.Set(nil) }))
	if have := n.shape(); have != before {
		t.Errorf("without targets:\n%s\nbefore:\n%s", have, before)
	}
	n.set(vip, false, nil)
	progtest.Check(t, n.lb.Do(n.checks.Close))
	if have := n.shape(); have != before {
		t.Errorf("after the end:\n%s\nbefore:\n%s", have, before)
	}
	n.set(vip, false, nil) // by who does not know of the end yet
	if have := n.shape(); have != before {
		t.Errorf("set after the end:\n%s\nbefore:\n%s", have, before)
	}
}

// holder makes the test program, started with the name of a VIP in this variable, attach and wait to be killed.
const holder, holderPins = "BALLAST_TEST_HOLD_CHECKS", "BALLAST_TEST_HOLD_CHECKS_PINS"

func TestHoldChecksUntilKilled(t *testing.T) {
	vip, err := netip.ParseAddr(os.Getenv(holder))
	if err != nil {
		t.Skip("a part of TestAKilledProcessLeavesNothingBehind")
	}
	checks, err := checkroute.Open(os.Getenv(holderPins), nil)
	progtest.Check(t, err)
	progtest.Check(t, checks.Set(map[checkroute.Key]checkroute.Target{
		{Service: "web", ID: 1}: {VIP: vip, Server: netip.MustParseAddr("10.9.0.2"), Forward: model.ForwardIPIP, Path: plan.Path{Ifindex: 2, Source: netip.MustParseAddr("10.9.0.1"), MTU: 1500}},
	}))
	fmt.Println("attached")
	io.Copy(io.Discard, os.Stdin)
}

// With tcx the kernel sees to it, without the next process does.
//
// Promise: A `ballast lb` that is killed while it checks leaves nothing of its checks behind, except an idle
// filter before Linux 6.6.
func TestAKilledProcessLeavesNothingBehind(t *testing.T) {
	progtest.BothWays(t, killedProcessLeavesNothing)
}

func killedProcessLeavesNothing(t *testing.T) {
	n := newCheckNet(t)
	n.path(netip.MustParseAddr("10.7.0.2"))
	before := n.shape()
	process := exec.Command(os.Args[0], "-test.run=^TestHoldChecksUntilKilled$")
	process.Env = append(os.Environ(), holder+"="+n.servers[0].vips[0].String(), holderPins+"="+n.pins)
	stdin, err := process.StdinPipe()
	progtest.Check(t, err)
	defer stdin.Close()
	stdout, err := process.StdoutPipe()
	progtest.Check(t, err)
	progtest.Check(t, n.lb.Start(process))
	said, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || said != "attached\n" {
		t.Fatalf("the process says %q: %v", said, err)
	}
	if have := n.shape(); !strings.Contains(have, "eth2: 1 programs") {
		t.Errorf("while it runs:\n%s", have)
	}
	progtest.Check(t, process.Process.Kill())
	process.Wait()
	n.open()
	n.await("the host is as it was", func() bool { return n.shape() == before })
}
