package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// exitFacts are a device that next hops leave by, as the target of frames that the program on other devices redirects.
type exitFacts struct {
	Name    string
	Target  netdev.Target
	Program bool // a native XDP program is there
}

// gatherExits looks at devices that next hops leave by.
func (f *facts) gatherExits(ifindexes []int) {
	slices.Sort(ifindexes)
	for _, ifindex := range slices.Compact(ifindexes) {
		target, err := netdev.ReadTarget(ifindex)
		if err != nil { // gone meanwhile
			continue
		}
		_, mode, there := attach.XDPOn(ifindex)
		f.Exits = append(f.Exits, exitFacts{Name: netdev.Name(ifindex), Target: target, Program: there && mode == attach.XDPNative})
	}
	slices.SortFunc(f.Exits, func(a, b exitFacts) int { return cmp.Compare(a.Name, b.Name) })
}

// exitsOfPaths are the devices that a load balancer's next hops leave by.
func (f *facts) exitsOfPaths() (ifindexes []int) {
	for _, path := range f.Paths {
		if path.Err == nil && path.Ifindex != 0 {
			ifindexes = append(ifindexes, int(path.Ifindex))
		}
	}
	return ifindexes
}

// exitsOfAgent are the devices that a server hands packets on by, as far as the kernel knows the next hops: the agent has it keep them.
func (f *facts) exitsOfAgent() (ifindexes []int) {
	resolver := netdev.NewResolver()
	f.services(func(s *model.Service) {
		here := f.mine(s)
		if !plan.HandsOn(s) {
			return
		}
		for i := range s.Servers {
			if s.Servers[i].Address == here.Address {
				continue
			}
			if hop, err := resolver.Lookup(s.Servers[i].Address); err == nil && hop.Ifindex != 0 {
				ifindexes = append(ifindexes, int(hop.Ifindex))
			}
		}
	})
	return ifindexes
}

// judgeExits is about devices that native programs of others redirect frames to.
func judgeExits(f *facts) (out []Finding) {
	for i := range f.Exits {
		e := &f.Exits[i]
		receives := func(d deviceFacts) bool { return f.Daemon.Interfaces[d.Name] != string(attach.XDPNone) } // by XDP
		redirects := func(d deviceFacts) bool {
			return receives(d) && d.Name != e.Name && !d.XDPGeneric && d.native() != nativeNo
		}
		own := slices.ContainsFunc(f.Devices, func(d deviceFacts) bool { return receives(d) && d.Name == e.Name })
		if own && e.Target.Veth || !slices.ContainsFunc(f.Devices, redirects) {
			continue // judgeVeth has said it; nothing is redirected to it, or socket buffers are
		}
		out = append(out, judgeExit(f.Role, e, own || f.Daemon.runs() && f.Daemon.Role == f.Role))
	}
	return out
}

// judgeExit: most drivers take redirected frames only while they have a native program themselves, which the daemon attaches. ours: it has had the time to.
func judgeExit(role Role, e *exitFacts, ours bool) Finding {
	daemon := "load balancer"
	if role == RoleAgent {
		daemon = "agent"
	}
	remedy := "start the " + daemon + " with --xdp-mode generic, or reach servers by another device"
	takes, known := e.Target.Takes()
	switch {
	case takes:
		return ok("exit", e.Name, "takes frames that the program redirects to it")
	case e.Target.Veth:
		severity, found := Problem, "servers are reached by it, and its peer has no XDP program: redirected frames vanish"
		if !known {
			severity, found = Warning, "servers are reached by it, and its peer cannot be seen from here: without an XDP program there, redirected frames vanish"
		}
		return Finding{"exit", e.Name, severity, found, fmt.Sprintf("in the peer's network namespace: ballast pass --interface %s", cmp.Or(e.Target.Peer.Name, "PEER"))}
	case known && (ours || e.Target.Features&netdev.XDPBasic == 0):
		return Finding{"exit", e.Name, Problem, "servers are reached by it, and its driver drops redirected frames", remedy}
	case e.Program:
		return ok("exit", e.Name, "has a native program, without which most drivers drop redirected frames")
	case ours:
		return Finding{"exit", e.Name, Warning, "servers are reached by it, and it has no native program, without which most drivers drop redirected frames", remedy}
	}
	return ok("exit", e.Name, "the %s attaches a program to it, without which most drivers drop redirected frames", daemon)
}
