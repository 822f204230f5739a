package server_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const (
	costPairs = 12
	costSlice = 400 * time.Millisecond
)

// TestCostOfMarking prints what marking costs, against a server that only decapsulates. It asserts nothing: time is not ours.
// Slices of both alternate, so that what else the machine does hits both; the median of the ratios is the answer.
func TestCostOfMarking(t *testing.T) {
	if os.Getenv("BALLAST_BENCH") == "" {
		t.Skip("measures: set BALLAST_BENCH=1")
	}
	with, without := newRig(t, rigOptions{}), newRig(t, rigOptions{plain: true})
	without.attachDecapsulationOnly(with)
	for _, r := range []*rig{with, without} {
		r.listen(false)
	}
	for _, work := range []struct {
		name string
		do   func(*rig) float64
		unit string
	}{{"bulk transfer", (*rig).bulk, "MB/s"}, {"new connections", (*rig).connections, "/s"}} {
		work.do(with)
		work.do(without)
		var ratios, plain []float64
		for i := range costPairs {
			var a, b float64
			if i%2 == 0 {
				a, b = work.do(with), work.do(without)
			} else {
				b, a = work.do(without), work.do(with)
			}
			ratios, plain = append(ratios, a/b), append(plain, b)
		}
		slices.Sort(ratios)
		slices.Sort(plain)
		t.Logf("%s: ratio %.3f (%.3f-%.3f, n=%d), without %.0f %s", work.name, ratios[costPairs/2], ratios[1], ratios[costPairs-2],
			costPairs, plain[costPairs/2], work.unit)
	}
	for _, work := range []struct {
		name string
		do   func(*rig) float64
	}{{"bulk transfer", (*rig).bulk}, {"new connections", (*rig).connections}} {
		with.perPacket(work.name, func() { work.do(with) })
	}
}

func (r *rig) attachDecapsulationOnly(of *rig) {
	xdp, _, _ := of.agent.Programs()
	progtest.Check(r.t, r.server.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		attached, err := link.AttachXDP(link.XDPOptions{Program: xdp, Interface: device.Index})
		if err == nil {
			r.t.Cleanup(func() { attached.Close() })
		}
		return err
	}))
}

// bulk is the throughput of one connection.
func (r *rig) bulk() float64 {
	conn := r.dial(r.vips[0])
	defer conn.Close()
	progtest.Check(r.t, fetch(conn, 1<<20))
	begin, bytes := time.Now(), 0
	for time.Since(begin) < costSlice {
		progtest.Check(r.t, fetch(conn, 16<<20))
		bytes += 16 << 20
	}
	return float64(bytes) / time.Since(begin).Seconds() / 1e6
}

// connections is the rate of connections with one request each.
func (r *rig) connections() float64 {
	var done atomic.Int64
	var group sync.WaitGroup
	begin := time.Now()
	for range 4 {
		group.Go(func() {
			runtime.LockOSThread() // and never unlock: the thread ends with its namespace
			if err := r.enterClient(); err != nil {
				r.t.Error(err)
				return
			}
			dialer := net.Dialer{Timeout: progtest.Deadline, FallbackDelay: -1}
			dialer.SetMultipathTCP(false)
			for time.Since(begin) < costSlice {
				conn, err := dialer.Dial("tcp", netip.AddrPortFrom(r.vips[0], servicePort).String())
				if err == nil {
					err = fetch(conn, 1)
					conn.(*net.TCPConn).SetLinger(0) // ports are finite
					conn.Close()
				}
				if err != nil {
					r.t.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	group.Wait()
	return float64(done.Load()) / time.Since(begin).Seconds()
}

// enterClient moves the calling thread into the client's namespace for good.
func (r *rig) enterClient() error {
	handle, err := os.Open(filepath.Join(netspace.Dir, r.client.Name))
	if err != nil {
		return err
	}
	defer handle.Close()
	return unix.Setns(int(handle.Fd()), unix.CLONE_NEWNET)
}

// perPacket prints the mean run time of each program in the quietest slice, the kernel's own two clock reads included.
func (r *rig) perPacket(name string, work func()) {
	enabled, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	progtest.Check(r.t, err)
	defer enabled.Close()
	xdp, ingress, egress := r.agent.Programs()
	for label, program := range map[string]*ebpf.Program{
		"xdp": xdp, "ingress": ingress, "egress": egress, "empty": r.empty(),
	} {
		var means []int
		for range costPairs {
			before, err := program.Stats()
			progtest.Check(r.t, err)
			work()
			after, err := program.Stats()
			progtest.Check(r.t, err)
			if runs := after.RunCount - before.RunCount; runs > 0 {
				means = append(means, int((after.Runtime-before.Runtime).Nanoseconds())/int(runs))
			}
		}
		slices.Sort(means)
		r.t.Logf("%s: %s ns per packet %v", name, label, means)
	}
}

// empty is a program that does nothing at the egress: what the measuring itself costs.
func (r *rig) empty() *ebpf.Program {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "MIT", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	progtest.Check(r.t, err)
	r.t.Cleanup(func() { program.Close() })
	r.atEgress(r.server, program)
	return program
}
