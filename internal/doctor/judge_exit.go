package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// exitFacts are a device that next hops leave by, as the target of frames that the program on other devices redirects.
type exitFacts struct {
	Name    string
	Target  netdev.Target
	Program bool // a native XDP program is there
}

// gatherExits looks at the devices of the paths.
func (f *facts) gatherExits() {
	seen := map[int]bool{}
	for _, path := range f.Paths {
		if path.Err != nil || path.Ifindex == 0 || seen[path.Ifindex] {
			continue
		}
		seen[path.Ifindex] = true
		target, err := netdev.ReadTarget(path.Ifindex)
		if err != nil { // gone meanwhile
			continue
		}
		_, mode, there := attach.XDPOn(path.Ifindex)
		f.Exits = append(f.Exits, exitFacts{Name: netdev.Name(path.Ifindex), Target: target, Program: there && mode == attach.XDPNative})
	}
	slices.SortFunc(f.Exits, func(a, b exitFacts) int { return cmp.Compare(a.Name, b.Name) })
}

// judgeExits is about devices that native programs of others redirect frames to.
func judgeExits(f *facts) (out []Finding) {
	for i := range f.Exits {
		e := &f.Exits[i]
		redirects := func(d deviceFacts) bool { return d.Name != e.Name && !d.XDPGeneric && d.native() != nativeNo }
		own := slices.ContainsFunc(f.Devices, func(d deviceFacts) bool { return d.Name == e.Name })
		if own && e.Target.Veth || !slices.ContainsFunc(f.Devices, redirects) {
			continue // judgeVeth has said it; nothing is redirected to it, or socket buffers are
		}
		out = append(out, judgeExit(e, own || f.Daemon.runs() && f.Daemon.Role == RoleLB))
	}
	return out
}

// judgeExit: most drivers take redirected frames only while they have a native program themselves, which a load balancer attaches. ours: it has had the time to.
func judgeExit(e *exitFacts, ours bool) Finding {
	const remedy = "start the load balancer with --xdp-mode generic, or reach servers by another device"
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
	return ok("exit", e.Name, "the load balancer attaches a program to it, without which most drivers drop redirected frames")
}
