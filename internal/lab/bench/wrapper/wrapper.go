// Package wrapper loads bpf/bench.bpf.c: the wrapper that feeds a program under test, and what it is compared with.
package wrapper

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

//go:generate go tool bpf2go -target bpfel -type bench_flow bench ../../../../bpf/bench.bpf.c

// Listed is how many frames a list holds at most. Longer series begin it again.
const Listed = 1 << 20

const maxGrowth = 160

// Result is what a measured series of runs left behind.
type Result struct {
	Runs      uint64        // programs run
	Discarded uint64        // programs run before: a signal ended the series, and it began anew
	Surprises uint64        // runs whose frame did not grow as expected
	Action    uint32        // of the last run
	Output    []byte        // frame of the last run
	Flow      uint32        // of the last run
	Index     uint8         // that its cookie carried
	CPU       time.Duration // of the thread
}

// Program is a loaded program, for those who only hand it on.
type Program = ebpf.Program

// Wrapper is the wrapper with its comparison programs. It is not safe for concurrent use, but for List while a series runs.
type Wrapper struct {
	objects benchObjects
	memory  []byte
	list    []benchBenchFlow // in that memory
	listed  atomic.Pointer[listed]
}

// listed is whose frames are in the list.
type listed struct {
	cell    *Cell
	flows   []uint32
	indices []uint8 // of all flows; nil: none
}

func (l *listed) index(flow uint32) uint8 {
	if l.indices == nil {
		return 0
	}
	return l.indices[flow]
}

// Open loads the programs.
func Open() (*Wrapper, error) {
	b := &Wrapper{}
	if err := loadBenchObjects(&b.objects, nil); err != nil {
		return nil, fmt.Errorf("load the benchmark's programs: %w", err)
	}
	var err error
	if b.memory, err = unix.Mmap(b.objects.Lists.FD(), 0, Listed*int(unsafe.Sizeof(b.list[0])), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(fmt.Errorf("map the list of flows into memory: %w", err), b.objects.Close())
	}
	b.list = unsafe.Slice((*benchBenchFlow)(unsafe.Pointer(&b.memory[0])), Listed)
	return b, nil
}

// Empty only returns XDP_TX.
func (b *Wrapper) Empty() *Program { return b.objects.Empty }

// ParseSwap parses Ethernet, IPv4 and TCP and swaps the MAC addresses.
func (b *Wrapper) ParseSwap() *Program { return b.objects.ParseSwap }

// MinimalIPIP puts an outer IPv4 header that is always the same in front of the packet: the floor.
func (b *Wrapper) MinimalIPIP() *Program { return b.objects.MinimalIpip }

// List makes the frames of flows, in turn, also while a series runs. indices are those that a connection table has given to all flows; nil: none.
func (b *Wrapper) List(cell *Cell, flows []uint32, indices []uint8) error {
	l := &listed{cell, flows, indices}
	for i, flow := range flows {
		b.list[i] = cell.own(flow, l.index(flow))
	}
	b.listed.Store(l)
	described := benchBenchCell{Frame: cell.Frame, Growth: cell.Growth, Length: uint16(FrameLength + len(cell.Behind)), Listed: uint32(len(flows))}
	if cell.IPv6 {
		described.Ipv6 = 1
	}
	if err := b.objects.Cell.Set(described); err != nil {
		return fmt.Errorf("describe the frames: %w", err)
	}
	return nil
}

// Open feeds program with two frames of each flow: one without an index, and one with the index that program wrote into the first. It
// sets the flows' indices.
func (b *Wrapper) Open(program *Program, cell *Cell, flows []uint32, indices []uint8) (run Result, err error) {
	if err := errors.Join(b.Put(program), b.List(cell, flows, nil)); err != nil {
		return run, err
	}
	run, err = b.series(b.objects.Opener, 2*uint32(len(flows)))
	for i, flow := range flows {
		indices[flow] = uint8(wire32(b.list[i].Echo^cell.own(flow, 0).Echo) >> cell.IndexShift)
	}
	return run, err
}

// Put puts program behind the wrapper, which costs grace periods.
func (b *Wrapper) Put(program *Program) error {
	if err := b.objects.Tested.Put(uint32(0), program); err != nil {
		return fmt.Errorf("put %s behind the wrapper: %w", program, err)
	}
	return nil
}

// Run feeds the program that was Put with so many of the frames that were listed. The calling goroutine must be locked to its thread.
func (b *Wrapper) Run(repeat uint32) (run Result, err error) {
	return b.series(b.objects.Wrapper, repeat)
}

func (b *Wrapper) series(wrapper *Program, repeat uint32) (run Result, err error) {
	var state benchBenchState
	var before time.Duration
	begin := func() (err error) {
		if err := b.objects.State.Set(benchBenchState{}); err != nil {
			return fmt.Errorf("begin the list: %w", err)
		}
		before, err = threadCPU()
		return err
	}
	if err := begin(); err != nil {
		return run, err
	}
	frame := b.listed.Load().cell.whole()
	var again error // a signal has ended the run, and it begins anew
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+maxGrowth), Repeat: repeat}
	//lint:ignore SA1019 a run that a signal ended leaves state behind, and nothing else says that it begins anew
	options.Reset = func() {
		again = errors.Join(again, b.objects.State.Get(&state))
		run.Discarded += state.Runs
		again = errors.Join(again, begin())
	}
	if run.Action, err = wrapper.Run(&options); err != nil {
		return run, fmt.Errorf("run %s: %w", wrapper, err)
	}
	if again != nil {
		return run, again
	}
	after, err := threadCPU()
	if err != nil {
		return run, err
	}
	if err := b.objects.State.Get(&state); err != nil {
		return run, fmt.Errorf("read what the wrapper counted: %w", err)
	}
	run.Runs, run.Surprises = state.Runs, state.Surprises
	l := b.listed.Load()
	run.Flow = l.flows[(state.Runs-1)%uint64(len(l.flows))]
	run.Index = l.index(run.Flow)
	run.Output, run.CPU = options.DataOut, after-before
	return run, nil
}

// Close unloads the programs.
func (b *Wrapper) Close() error { return errors.Join(unix.Munmap(b.memory), b.objects.Close()) }

func threadCPU() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0, fmt.Errorf("read the thread's CPU time: %w", err)
	}
	return time.Duration(now.Nano()), nil
}
