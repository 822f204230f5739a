package server_test

import (
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

const (
	acceptRounds = 25
	acceptRuns   = 100_000
	innerAt      = 14 + 20 + 8 + 4 + 12 // in GUE over IPv4 with two stops
)

// TestCostOfAccepting prints what a SYN costs a server that accepts it, or passes it on, and a packet that is delivered. It asserts nothing about time:
// time is not ours. A program in front writes each frame anew, from a client and with a sequence number drawn at random; what it costs
// with a program that does nothing is taken off. The rounds alternate; that of the fastest quarter counts, as other guests of the machine
// make rounds slower, and none faster.
func TestCostOfAccepting(t *testing.T) {
	if os.Getenv("BALLAST_BENCH") == "" {
		t.Skip("measures: set BALLAST_BENCH=1")
	}
	r := newAcceptRig(t, nil)
	r.listen(false)
	progtest.Check(t, r.server.Do(r.agent.CountLive))
	conn := r.dial(r.vips[0])
	defer conn.Close()
	progtest.Check(t, fetch(conn, 1))
	port := netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
	wrap := func(inner []byte) []byte {
		return r.wrap(tunnel{from: balancers[0], to: own4, gue: gueWithStops(0, stop4, stop4)}, inner)
	}
	xdp, _, _ := r.agent.Programs()
	static := func(load model.AcceptLoad, threshold uint32) func(*plan.AgentRow) {
		return func(row *plan.AgentRow) {
			row.Policy, row.Load, row.Threshold = uint8(model.AcceptStatic), uint8(load), threshold
		}
	}
	dynamic := func(row *plan.AgentRow) {
		row.Policy, row.Load, row.Threshold, row.Window, row.Low, row.High = uint8(model.AcceptDynamic), uint8(model.AcceptByConnections), 1<<20, 50, 0, 50
	}
	packet := syn(t, r.vips[0], 1000, 1)
	plain := r.wrap(tunnel{from: balancers[0], to: own4, gue: plainGUE()}, inner(t, r.vips[0], servicePort, 1000, "A", 0))
	cells := []*acceptCell{
		{name: "empty", frame: wrap(packet), random: true, empty: true},
		{name: "accept, static", frame: wrap(packet), random: true, change: static(model.AcceptByConnections, 1<<20), verdict: "accepted_first"},
		{name: "accept, dynamic", frame: wrap(packet), random: true, change: dynamic, verdict: "accepted_first"},
		{name: "accept, backlog", frame: wrap(packet), random: true, change: static(model.AcceptByBacklog, 1<<20), verdict: "accepted_first"},
		{name: "pass on", frame: wrap(packet), random: true, change: static(model.AcceptByConnections, 0), verdict: "passed_on_first"},
		{name: "empty, one flow", frame: wrap(packet), empty: true},
		{name: "pass on, one flow", frame: wrap(packet), change: static(model.AcceptByConnections, 0), verdict: "passed_on_first"},
		{name: "accept, one flow", frame: wrap(syn(t, r.vips[0], 1001, 1)), change: static(model.AcceptByCPU, 1<<20), verdict: "accepted_first"},
		{name: "deliver", frame: wrap(inner(t, r.vips[0], servicePort, port, "A", 0)), verdict: "decapsulated_mine"},
		{name: "hand on", frame: wrap(inner(t, r.vips[0], servicePort, 1000, "A", 0)), random: true, verdict: "handed_on"},
		{name: "decapsulate, no stops", frame: plain, verdict: "decapsulated"},
	}
	for _, c := range cells {
		c.program = xdp
		if c.empty {
			c.program = emptyXDP(t)
		}
		c.front = newFront(t, c)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range acceptRounds {
		for _, c := range cells {
			r.choose(c.change)
			before := uint64(0)
			if !c.empty {
				before = r.count(c.verdict)
			}
			c.took = append(c.took, r.time(c))
			if !c.empty && r.count(c.verdict)-before < acceptRuns {
				t.Fatalf("%s: %d of %d packets are %s", c.name, r.count(c.verdict)-before, acceptRuns, c.verdict)
			}
		}
		slices.Reverse(cells)
	}
	control := map[bool]float64{}
	for _, c := range cells {
		if slices.Sort(c.took); c.empty {
			control[c.random] = c.took[acceptRounds/4]
		}
	}
	for _, c := range cells {
		t.Logf("%-22s %4.0f ns (%.0f to %.0f)", c.name, c.took[acceptRounds/4]-control[c.random], c.took[0]-control[c.random], c.took[acceptRounds-1]-control[c.random])
	}
}

type acceptCell struct {
	name    string
	frame   []byte
	random  bool // another client and sequence number each time
	empty   bool
	change  func(*plan.AgentRow)
	verdict string

	program, front *ebpf.Program
	took           []float64 // ns, of each round
}

// time returns the CPU time of one packet, the front's included.
func (r *xdpRig) time(c *acceptCell) (ns float64) {
	r.t.Helper()
	progtest.Check(r.t, r.server.Do(func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		before, err := threadCPU()
		if err != nil {
			return err
		}
		options := ebpf.RunOptions{Data: c.frame, DataOut: make([]byte, 256), Repeat: acceptRuns,
			Context: struct{ Data, DataEnd, Meta, Ifindex, Queue, Egress uint32 }{DataEnd: uint32(len(c.frame)), Ifindex: uint32(r.device.Index)}}
		if _, err := c.front.Run(&options); err != nil {
			return err
		}
		after, err := threadCPU()
		ns = float64(after-before) / acceptRuns
		return err
	}))
	return ns
}

func threadCPU() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now)
	return time.Duration(now.Nano()), err
}

func emptyXDP(t *testing.T) *ebpf.Program {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpTX), asm.Return()}})
	progtest.Check(t, err)
	t.Cleanup(func() { program.Close() })
	return program
}

// lookUp finds the element of the index at -4 of the frame pointer, or goes to "out".
func lookUp(m *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
	}
}

// writeFrame writes what was looked up over the frame whose context R6 has.
func writeFrame(length int) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.R0),
		asm.Mov.Imm(asm.R4, int32(length)),
		asm.FnXdpStoreBytes.Call(),
	}
}

// newFront makes a program that gives the frame its length again, writes it, and goes on with the cell's program.
func newFront(t *testing.T, c *acceptCell) *ebpf.Program {
	t.Helper()
	frame, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 128, MaxEntries: 1})
	progtest.Check(t, err)
	next, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	progtest.Check(t, err)
	t.Cleanup(func() { frame.Close(); next.Close() })
	value := make([]byte, 128)
	copy(value, c.frame)
	progtest.Check(t, frame.Put(uint32(0), value))
	progtest.Check(t, next.Put(uint32(0), c.program))
	code := slices.Concat(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, 4, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, 0, asm.Word),
		asm.Sub.Reg(asm.R2, asm.R3),
		asm.Sub.Imm(asm.R2, int32(len(c.frame))),
		asm.FnXdpAdjustHead.Call(),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
	}, lookUp(frame), writeFrame(len(c.frame)))
	for _, at := range []int32{innerAt + 12, innerAt + 20 + 4} { // the client's address, the sequence number
		if c.random {
			code = append(code,
				asm.FnGetPrandomU32.Call(),
				asm.StoreMem(asm.RFP, -8, asm.R0, asm.Word),
				asm.Mov.Reg(asm.R1, asm.R6),
				asm.Mov.Imm(asm.R2, at),
				asm.Mov.Reg(asm.R3, asm.RFP),
				asm.Add.Imm(asm.R3, -8),
				asm.Mov.Imm(asm.R4, 4),
				asm.FnXdpStoreBytes.Call())
		}
	}
	code = append(code,
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, next.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "MIT", Instructions: code})
	progtest.Check(t, err)
	t.Cleanup(func() { program.Close() })
	return program
}
