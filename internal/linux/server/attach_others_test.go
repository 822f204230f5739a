package server_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/internal/tcx"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
)

// Promise: Programs of others at tc, of a network of pods, neither keep the agent's from their packets nor miss any, whichever was there first.
func TestProgramsOfOthersRunAfterOurs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := tcx.Have(); err != nil {
		t.Skip("filters have a test of their own:", err)
	}
	for _, earlier := range []bool{true, false} {
		t.Run(fmt.Sprintf("they were there first %v", earlier), func(t *testing.T) { programsOfOthersRun(t, earlier) })
	}
}

func programsOfOthersRun(t *testing.T, earlier bool) {
	r := newRig(t, rigOptions{plain: true})
	counters := map[ebpf.AttachType]*ebpf.Map{}
	add := func() {
		for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			program, counter := foreign(t, 0) // TC_ACT_OK: nobody after it is asked
			r.on(func(device *net.Interface) error {
				l, err := ebpflink.AttachTCX(ebpflink.TCXOptions{Interface: device.Index, Program: program, Attach: hook, Anchor: ebpflink.Tail()})
				if err == nil {
					t.Cleanup(func() { l.Close() })
				}
				return err
			})
			counters[hook] = counter
		}
	}
	if earlier {
		add()
	}
	r.attach("")
	if !earlier {
		add()
	}
	r.listen(false)
	before, w := r.rejects(), r.watch()
	r.browse(4, 1000)
	r.verify(w, before)
	for hook, ours := range map[ebpf.AttachType]uint64{ebpf.AttachTCXIngress: r.count("ingress_restored"), ebpf.AttachTCXEgress: r.count("egress_marked")} {
		var theirs uint64
		progtest.Check(t, counters[hook].Lookup(uint32(0), &theirs))
		if ours == 0 || theirs < ours {
			t.Errorf("%s: ours %d, theirs saw %d", hook, ours, theirs)
		}
	}
}

// ahead attaches programs of others before all at both hooks until the function that it returns is called.
func (r *rig) ahead(verdict int32) (end func()) {
	r.t.Helper()
	var links []ebpflink.Link
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		program, _ := foreign(r.t, verdict)
		r.on(func(device *net.Interface) error {
			l, err := ebpflink.AttachTCX(ebpflink.TCXOptions{Interface: device.Index, Program: program, Attach: hook, Anchor: ebpflink.Head()})
			links = append(links, l)
			return err
		})
	}
	return func() {
		for _, l := range links {
			l.Close()
		}
	}
}

// said is what an agent says of programs ahead of its own.
func (r *rig) said(agent *server.Server) (lines []string) {
	r.t.Helper()
	r.on(func(device *net.Interface) (err error) {
		lines, err = agent.Ahead(device.Index)
		return err
	})
	return lines
}

// Promise: Programs of others that are put before ours later are named, and the next process of the agent puts its own first without a packet that misses them, or is
// rewritten by both.
func TestANewProcessPutsItsProgramsFirst(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := tcx.Have(); err != nil {
		t.Skip("filters have a test of their own:", err)
	}
	r := newRig(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	if lines := r.said(r.agent); len(lines) != 0 {
		t.Errorf("at first: %q", lines)
	}
	r.listen(false)
	before, w := r.rejects(), r.watch()
	done := make(chan struct{})
	var clients sync.WaitGroup
	clients.Go(func() {
		defer close(done)
		for range 20 {
			r.browse(4, 1000)
		}
	})
	rounds := 0
	for ended := false; !ended || rounds < 10; rounds++ {
		end := r.ahead(-1) // the next one is asked
		if lines := r.said(r.agent); len(lines) != 2 || !strings.Contains(lines[0], "at ingress of eth0 before ours") || !strings.Contains(lines[1], "at egress of eth0 before ours") {
			t.Errorf("round %d: %q", rounds, lines)
		}
		next, err := server.Open(dir, server.Limits{})
		progtest.Check(t, err)
		r.on(func(device *net.Interface) error {
			_, err := next.Attach(device, attach.XDPAuto)
			return errors.Join(err, next.Runs(device.Index), next.Attached())
		})
		progtest.Check(t, r.agent.Close())
		r.agent = next
		if lines := r.said(r.agent); len(lines) != 0 {
			t.Errorf("round %d, a new process: %q", rounds, lines)
		}
		end()
		select {
		case <-done:
			ended = true
		default:
		}
	}
	clients.Wait()
	r.verify(w, before)
	if pins, err := filepath.Glob(filepath.Join(dir, "link-*")); err != nil || len(pins) != 3 {
		t.Errorf("after %d rounds, pins are %v: %v", rounds, pins, err)
	}
	end := r.ahead(0) // nobody after it is asked, as by Cilium's cil_from_netdev and cil_to_netdev
	defer end()
	marked := r.count("egress_marked_syn_ack")
	if r.browse(2, 1000); r.count("egress_marked_syn_ack") != marked || len(r.said(r.agent)) != 2 {
		t.Errorf("what ends packets before ours lets some by, or is not named: %q", r.said(r.agent))
	}
}

// Filters that are added at the priority of ours run before it.
func TestFiltersBeforeOursAreNamed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	progtest.Clsact(t, func(t *testing.T) {
		r := newRig(t, rigOptions{plain: true})
		r.attach(r.pins())
		if lines := r.said(r.agent); len(lines) != 0 {
			t.Errorf("at first: %q", lines)
		}
		program, _ := foreign(t, 0)
		r.on(func(device *net.Interface) error {
			return netlink.FilterAdd(&netlink.BpfFilter{Fd: program.FD(), Name: "theirs", DirectAction: true, FilterAttrs: netlink.FilterAttrs{
				LinkIndex: device.Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL}})
		})
		if lines := r.said(r.agent); len(lines) != 1 || !strings.Contains(lines[0], "filter bpf theirs (pref 1) runs at ingress of eth0 before ours") {
			t.Errorf("they say %q", lines)
		}
	})
}

// An XDP program on a device that ours is made of has packets first.
func TestXDPProgramsBelowOursAreNamed(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	program := progtest.Theirs(t, ebpf.XDP, 2)
	r.on(func(device *net.Interface) error {
		above := []string{"br0"}
		for _, command := range []string{"link add link eth0 name eth0.7 type vlan id 7", "link add br0 type bridge", "link set eth0 master br0"} {
			out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput()
			switch vlan := strings.Contains(command, "vlan"); {
			case vlan && err == nil:
				above = append(above, "eth0.7")
			case err != nil && !(vlan && strings.Contains(string(out), "Unknown device type")): // a kernel without
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
		}
		l, err := ebpflink.AttachXDP(ebpflink.XDPOptions{Program: program, Interface: device.Index, Flags: ebpflink.XDPGenericMode})
		if err != nil {
			return err
		}
		defer l.Close()
		for _, name := range above {
			device, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			if lines := attach.XDPBelow(device.Index); len(lines) != 1 || !strings.Contains(lines[0], "XDP program theirs (id ") || !strings.Contains(lines[0], "runs on eth0, below "+name) {
				t.Errorf("of %s they say %q", name, lines)
			}
		}
		if lines := attach.XDPBelow(device.Index); len(lines) != 0 {
			t.Errorf("of eth0 they say %q", lines)
		}
		return nil
	})
}
