package server_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
)

// on runs do with the server's device, in its namespace.
func (r *rig) on(do func(device *net.Interface) error) {
	r.t.Helper()
	progtest.Check(r.t, r.server.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return do(device)
	}))
}

// filters lists the server's by hook, in the order in which packets meet their priorities.
func (r *rig) filters() (ingress, egress []netlink.Filter) {
	r.t.Helper()
	r.on(func(device *net.Interface) (err error) {
		at := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: device.Index}}
		if ingress, err = netlink.FilterList(at, netlink.HANDLE_MIN_INGRESS); err == nil {
			egress, err = netlink.FilterList(at, netlink.HANDLE_MIN_EGRESS)
		}
		return err
	})
	return ingress, egress
}

func (r *rig) hasClsact() (found bool) {
	r.t.Helper()
	r.on(func(device *net.Interface) error {
		qdiscs, err := netlink.QdiscList(nil)
		for _, q := range qdiscs {
			found = found || q.Type() == "clsact" && q.Attrs().LinkIndex == device.Index
		}
		return err
	})
	return found
}

// received is how many packets the device has had.
func (r *rig) received() (packets uint64) {
	r.t.Helper()
	r.on(func(device *net.Interface) error {
		l, err := netlink.LinkByIndex(device.Index)
		if err == nil {
			packets = l.Attrs().Statistics.RxPackets
		}
		return err
	})
	return packets
}

// seen is how many packets the ingress program has had.
func (r *rig) seen() (packets uint64) {
	r.t.Helper()
	counters, err := r.agent.Counters()
	progtest.Check(r.t, err)
	for name, traffic := range counters {
		if strings.HasPrefix(name, "ingress_") {
			packets += traffic.Packets
		}
	}
	return packets
}

// Promise: Before Linux 6.6 (no tcx), connections are kept over restarts and upgrades and foreign filters stay; a
// killed load balancer leaves an idle filter.
// Also held by TestFiltersOfOthersStayAndWork.
func TestNoPacketPassesByWhileProgramsAreReplaced(t *testing.T) {
	progtest.BothWays(t, replaceUnderPackets)
}

func replaceUnderPackets(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	other, err := server.Open(dir, server.Limits{})
	progtest.Check(t, err)
	defer other.Close()
	var socket net.Conn
	progtest.Check(t, r.client.Do(func() (err error) { socket, err = net.Dial("udp", "10.9.0.2:9"); return err }))
	defer socket.Close()
	seen, received := r.seen(), r.received()
	done := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		for {
			for range 100 { // few enough for the queue between the device and the hook
				socket.Write([]byte("x")) // the answer, port unreachable, is none of our business
			}
			for had := r.received() - received; r.seen()-seen < had; {
				select {
				case <-done:
					return
				default:
				}
			}
		}
	})
	for i := range 300 {
		server := []*server.Server{other, r.agent}[i%2]
		r.on(func(device *net.Interface) error {
			_, err := server.Attach(device, attach.XDPAuto)
			return errors.Join(err, server.Runs(device.Index))
		})
	}
	close(done)
	sender.Wait()
	r.await("all packets", func() bool { return r.seen()-seen == r.received()-received })
	if n := r.received() - received; n < 1000 {
		t.Errorf("only %d packets while programs were replaced", n)
	}
}

func TestWhatDetachesAProgramIsSeenAndMended(t *testing.T) {
	progtest.BothWays(t, detachmentIsSeen)
}

func detachmentIsSeen(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	dir := r.pins()
	r.attach(dir)
	r.on(func(device *net.Interface) error { return r.agent.Runs(device.Index) })
	pins, err := filepath.Glob(filepath.Join(dir, "link-*"))
	progtest.Check(t, err)
	detach := map[string]func(){}
	for _, pin := range pins {
		detach["link detach of "+filepath.Base(pin)] = func() {
			l, err := ebpflink.LoadPinnedLink(pin, nil)
			progtest.Check(t, err)
			defer l.Close()
			raw, ok := l.(interface{ Detach() error })
			if !ok {
				t.Fatalf("%T cannot be detached", l)
			}
			progtest.Check(t, raw.Detach())
		}
		detach["removal of "+filepath.Base(pin)] = func() { progtest.Check(t, os.Remove(pin)) }
	}
	if ingress, egress := r.filters(); len(ingress) > 0 {
		detach["deleted ingress filter"] = func() { r.on(func(*net.Interface) error { return netlink.FilterDel(ingress[0]) }) }
		detach["deleted egress filter"] = func() { r.on(func(*net.Interface) error { return netlink.FilterDel(egress[0]) }) }
		detach["deleted qdisc"] = func() {
			r.on(func(device *net.Interface) error {
				return netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
					LinkIndex: device.Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}})
			})
		}
	}
	if len(detach) < 4 {
		t.Fatalf("only %d ways to detach: %v", len(detach), pins)
	}
	for what, do := range detach {
		do()
		r.on(func(device *net.Interface) error {
			if err := r.agent.Runs(device.Index); err == nil {
				t.Errorf("%s: is not seen", what)
			}
			r.await(what+" is mended", func() bool { // the kernel frees a link a little later
				_, err := r.agent.Attach(device, attach.XDPAuto)
				return err == nil
			})
			return r.agent.Runs(device.Index)
		})
	}
	r.listen(false)
	r.browse(2, 1000)
	if n := r.count("ingress_restored"); n == 0 {
		t.Error("nothing was restored")
	}
}

// foreign is another's filter: it counts in a map and gives a verdict.
func foreign(t *testing.T, verdict int32) (*ebpf.Program, *ebpf.Map) {
	t.Helper()
	counter, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	progtest.Check(t, err)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMapValue(asm.R1, counter.FD(), 0),
		asm.Mov.Imm(asm.R2, 1),
		asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, verdict),
		asm.Return(),
	}})
	progtest.Check(t, err)
	t.Cleanup(func() { program.Close(); counter.Close() })
	return program, counter
}

func TestFiltersOfOthersStayAndWork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, earlier := range []bool{true, false} {
		t.Run(fmt.Sprintf("they were there first %v", earlier), func(t *testing.T) { progtest.Clsact(t, func(t *testing.T) { filtersOfOthersStay(t, earlier) }) })
	}
}

func filtersOfOthersStay(t *testing.T, earlier bool) {
	r := newRig(t, rigOptions{plain: true})
	dir := r.pins()
	program, counter := foreign(t, 0) // TC_ACT_OK: nobody after it is asked
	words := &netlink.U32{Sel: &netlink.TcU32Sel{Nkeys: 1, Flags: netlink.TC_U32_TERMINAL, Keys: []netlink.TcU32Key{{}}}}
	add := func() {
		r.on(func(device *net.Interface) error {
			if err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: device.Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}}); err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
			bpf := &netlink.BpfFilter{Fd: program.FD(), Name: "theirs", DirectAction: true}
			bpf.FilterAttrs = netlink.FilterAttrs{LinkIndex: device.Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 2, Protocol: unix.ETH_P_ALL}
			words.FilterAttrs = netlink.FilterAttrs{LinkIndex: device.Index, Parent: netlink.HANDLE_MIN_EGRESS, Priority: 5, Protocol: unix.ETH_P_IP}
			return errors.Join(netlink.FilterAdd(bpf), netlink.FilterAdd(words))
		})
	}
	if earlier {
		add()
	}
	r.attach(dir)
	if !earlier {
		add()
	}
	r.listen(false)
	before, w := r.rejects(), r.watch()
	r.browse(4, 1000)
	r.verify(w, before)
	var theirs uint64
	progtest.Check(t, counter.Lookup(uint32(0), &theirs))
	if ours := r.count("ingress_restored"); ours == 0 || theirs < ours {
		t.Errorf("ours restored %d, theirs saw %d", ours, theirs)
	}
	for range 2 { // the second time there is nothing to do
		progtest.Check(t, r.server.Do(func() error { return attach.Detach(dir) }))
	}
	ingress, egress := r.filters()
	if len(ingress) != 1 || len(egress) == 0 || !r.hasClsact() {
		t.Errorf("after the end: %v %v, clsact %v: want theirs", ingress, egress, r.hasClsact())
	}
}

func TestTheQdiscGoesWithTheLastProgram(t *testing.T) {
	progtest.Clsact(t, func(t *testing.T) {
		r := newRig(t, rigOptions{plain: true})
		dir := r.pins()
		r.attach(dir)
		if !r.hasClsact() {
			t.Fatal("no clsact")
		}
		second, err := server.Open(dir, server.Limits{}) // takes no device: what the first one had goes
		progtest.Check(t, err)
		defer second.Close()
		progtest.Check(t, r.server.Do(second.Attached))
		if ingress, egress := r.filters(); len(ingress)+len(egress) > 0 || r.hasClsact() {
			t.Errorf("left: %v %v, clsact %v", ingress, egress, r.hasClsact())
		}
	})
}

func TestFiltersInAnotherNetworkNamespaceAreMissed(t *testing.T) {
	progtest.Clsact(t, func(t *testing.T) {
		r := newRig(t, rigOptions{plain: true})
		dir := r.pins()
		r.attach(dir)
		if err := attach.FiltersElsewhere(dir); err == nil || !strings.Contains(err.Error(), "run this in the namespace that the daemon ran in") {
			t.Errorf("from another namespace: %v", err)
		}
		progtest.Check(t, r.server.Do(func() error { return attach.FiltersElsewhere(dir) }))
		progtest.Check(t, r.server.Do(func() error { return attach.Detach(dir) }))
		progtest.Check(t, attach.FiltersElsewhere(dir))
	})
}

func TestTwoProcessesAtOnceMakeOneFilter(t *testing.T) {
	progtest.Clsact(t, func(t *testing.T) {
		r := newRig(t, rigOptions{plain: true})
		dir := r.pins()
		var servers [4]*server.Server
		for i := range servers {
			var err error
			servers[i], err = server.Open(dir, server.Limits{})
			progtest.Check(t, err)
			defer servers[i].Close()
		}
		var group sync.WaitGroup
		for range 20 {
			for _, server := range servers {
				group.Go(func() {
					r.on(func(device *net.Interface) error { return server.AttachTC(device.Index) })
				})
			}
			group.Wait()
			if ingress, egress := r.filters(); len(ingress) != 1 || len(egress) != 1 {
				t.Fatalf("%v %v", ingress, egress)
			}
			progtest.Check(t, r.server.Do(func() error { return attach.RemoveFilters(dir) }))
		}
		if r.hasClsact() {
			t.Error("clsact stays")
		}
	})
}

func TestADeviceThatReturnsGetsItsPrograms(t *testing.T) {
	progtest.BothWays(t, func(t *testing.T) {
		r := newRig(t, rigOptions{plain: true})
		r.attach(r.pins())
		old := 0
		r.on(func(device *net.Interface) error {
			old = device.Index
			return netlink.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: old}})
		})
		if err := r.server.Do(func() error { return r.agent.Runs(old) }); err == nil {
			t.Error("a device that is gone has the programs")
		}
		progtest.Connect(t, r.client, "eth0", 1, r.server, "eth0", 2, 9, 1500)
		r.on(func(device *net.Interface) error {
			_, err := r.agent.Attach(device, attach.XDPAuto)
			return errors.Join(err, r.agent.Forget(old), r.agent.Attached(), r.agent.Runs(device.Index))
		})
	})
}

func TestAnIngressQdiscIsRefusedWithTheRemedy(t *testing.T) {
	progtest.Clsact(t, func(t *testing.T) {
		r := newRig(t, rigOptions{plain: true})
		server, err := server.Open(r.pins(), server.Limits{})
		progtest.Check(t, err)
		defer server.Close()
		r.on(func(device *net.Interface) error {
			progtest.Check(t, netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: device.Index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)}}))
			_, err := server.Attach(device, attach.XDPAuto)
			if err == nil || !strings.Contains(err.Error(), "ingress qdisc") {
				t.Errorf("attached beside an ingress qdisc: %v", err)
			}
			return nil
		})
	})
}

// The kernel takes no XDP program on a device below one that has some, and says "file exists".
func TestAProgramOnADeviceAboveIsNamed(t *testing.T) {
	r := newRig(t, rigOptions{plain: true})
	agent, err := server.Open(r.pins(), server.Limits{})
	progtest.Check(t, err)
	defer agent.Close()
	progtest.Check(t, r.server.Do(func() error {
		for _, command := range []string{"link add br0 type bridge", "link set eth0 master br0", "link set br0 up"} {
			if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
		}
		above, err := net.InterfaceByName("br0")
		if err != nil {
			return err
		}
		_, err = agent.Attach(above, attach.XDPAuto)
		return err
	}))
	r.on(func(device *net.Interface) error {
		if _, err := agent.Attach(device, attach.XDPAuto); err == nil || !strings.Contains(err.Error(), "the kernel takes no program below br0") {
			t.Errorf("attached below a program: %v", err)
		}
		return nil
	})
}

func TestAStartThatFailsTakesItsFiltersAlong(t *testing.T) {
	progtest.Clsact(t, func(t *testing.T) {
		r := newRig(t, rigOptions{plain: true})
		dir := r.pins()
		undo := func() (undo func() error) {
			progtest.Check(t, r.server.Do(func() (err error) { undo, err = attach.BeforeStart(dir); return err }))
			return undo
		}
		fails := undo()
		r.attach(dir)
		progtest.Check(t, errors.Join(r.agent.Close(), r.server.Do(fails)))
		if ingress, egress := r.filters(); len(ingress)+len(egress) > 0 || r.hasClsact() {
			t.Errorf("left: %v %v, clsact %v", ingress, egress, r.hasClsact())
		}
		r.attach(dir)
		fails = undo()
		r.attach(dir)
		progtest.Check(t, r.server.Do(fails))
		r.on(func(device *net.Interface) error { return r.agent.Runs(device.Index) })
	})
}

func TestAFailedAttachLeavesNothing(t *testing.T) { progtest.BothWays(t, failedAttachLeavesNothing) }

func failedAttachLeavesNothing(t *testing.T) {
	r := newRig(t, rigOptions{})
	progtest.Connect(t, r.server, "eth9", 1, progtest.NewSpace(t, "o"), "eth0", 2, 19, 0)
	progtest.Check(t, r.server.Do(func() error {
		device, err := net.InterfaceByName("eth9")
		if err != nil {
			return err
		}
		if _, err := link.AttachPass(device); err != nil {
			return err
		}
		if _, err := r.agent.Attach(device, attach.XDPAuto); err == nil {
			t.Error("attached where another XDP program is")
		}
		if links, _ := filepath.Glob(filepath.Join(r.pins(), "link-*-"+strconv.Itoa(device.Index))); len(links) > 0 {
			t.Errorf("left: %v", links)
		}
		if filters, err := exec.Command("tc", "filter", "show", "dev", "eth9", "egress").CombinedOutput(); err != nil || len(filters) > 0 {
			t.Errorf("left: %s (%v)", filters, err)
		}
		if r.agent.Runs(device.Index) == nil {
			t.Error("the programs are still there")
		}
		for range 2 { // the second time all is there already
			if got, err := r.agent.Attach(device, attach.XDPNone); err != nil || got != attach.XDPNone {
				t.Errorf("at tc alone: %q, %v", got, err)
			}
			if _, err := r.agent.Attach(device, attach.XDPAuto); err == nil {
				t.Error("attached where another XDP program is")
			}
			if err := r.agent.Runs(device.Index); err != nil {
				t.Errorf("what was there before was taken away: %v", err)
			}
		}
		return nil
	}))
}
