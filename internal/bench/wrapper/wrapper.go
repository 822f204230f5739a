// Package wrapper loads bpf/bench.bpf.c: the wrapper that feeds a program under test, and what it is compared with.
package wrapper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
)

//go:generate go tool bpf2go -target bpfel bench ../../../bpf/bench.bpf.c

// FrameLength is the length of the frames that the wrapper writes.
const FrameLength = 80

// Listed is how many flows a list holds at most.
const Listed = 1 << 20

// Cell says what the wrapper writes before each run; the layout is that of struct bench_cell.
type Cell struct {
	CookieKey   cookie.Key
	Frame       [FrameLength]byte // the client's address and port are 0
	Flows       uint32            // distinct ones, up to 2^24
	Growth      uint16            // of the frame, by the program under test
	IDs         uint16            // the flow's server is 1 + flow % IDs
	ServicePort [2]byte           // network order
	CookieBits  uint8             // 0: no cookie
	EpochParity uint8
	IndexShift  uint8 // of the index in the cookie's text; 0: no index
	Listed      bool  // the flows are those that List told, in turn, not drawn at random
	_           uint16
}

// Result is what a measured series of runs left behind.
type Result struct {
	Runs      uint64        // programs run; more than asked for when a signal interrupted the series
	Surprises uint64        // runs whose frame did not grow as expected
	Action    uint32        // of the last run
	Output    []byte        // frame of the last run
	Flow      uint32        // of the last run
	Index     uint8         // that its cookie carried, where flows are listed
	CPU       time.Duration // of the thread
}

// Program is a loaded program, for those who only hand it on.
type Program = ebpf.Program

// Wrapper is the wrapper with its comparison programs. It is not safe for concurrent use.
type Wrapper struct {
	objects benchObjects
	list    []byte
}

// Open loads the programs.
func Open() (*Wrapper, error) {
	b := &Wrapper{}
	if err := loadBenchObjects(&b.objects, nil); err != nil {
		return nil, fmt.Errorf("load the benchmark's programs: %w", err)
	}
	var err error
	if b.list, err = unix.Mmap(b.objects.Lists.FD(), 0, 4*Listed, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(fmt.Errorf("map the list of flows into memory: %w", err), b.objects.Close())
	}
	return b, nil
}

// Empty only returns XDP_TX.
func (b *Wrapper) Empty() *Program { return b.objects.Empty }

// ParseSwap parses Ethernet, IPv4 and TCP and swaps the MAC addresses.
func (b *Wrapper) ParseSwap() *Program { return b.objects.ParseSwap }

// MinimalIPIP puts an outer IPv4 header that is always the same in front of the packet: the floor.
func (b *Wrapper) MinimalIPIP() *Program { return b.objects.MinimalIpip }

// List tells the flows of cells whose flows are listed. indices are those that a connection table has given to all flows; nil: none.
func (b *Wrapper) List(flows []uint32, indices []uint8) {
	for i, flow := range flows {
		if indices != nil {
			flow |= uint32(indices[flow]) << 24
		}
		binary.LittleEndian.PutUint32(b.list[4*i:], flow)
	}
}

// Run feeds program with repeat frames. The calling goroutine must be locked to its thread.
func (b *Wrapper) Run(program *Program, cell Cell, repeat uint32, seed uint64) (run Result, err error) {
	return b.run(b.objects.Wrapper, program, cell, repeat, seed)
}

// Open feeds program with two frames of each flow: one without an index, and one with the index that program wrote into the first. It
// sets the flows' indices.
func (b *Wrapper) Open(program *Program, cell Cell, flows []uint32, indices []uint8) (run Result, err error) {
	b.List(flows, nil)
	run, err = b.run(b.objects.Opener, program, cell, 2*uint32(len(flows)), 0)
	for i, flow := range flows {
		indices[flow] = b.list[4*i+3]
	}
	return run, err
}

func (b *Wrapper) run(wrapper, program *Program, cell Cell, repeat uint32, seed uint64) (run Result, err error) {
	if err := errors.Join(b.Put(program), b.Describe(cell)); err != nil {
		return run, err
	}
	return b.series(wrapper, cell.Frame[:], repeat, seed)
}

// Put puts program behind the wrapper, which costs grace periods.
func (b *Wrapper) Put(program *Program) error {
	if err := b.objects.Tested.Put(uint32(0), program); err != nil {
		return fmt.Errorf("put %s behind the wrapper: %w", program, err)
	}
	return nil
}

// Describe says what frames are written from the next one on, also while a series runs.
func (b *Wrapper) Describe(cell Cell) error {
	if err := b.objects.Cell.Set(cell); err != nil {
		return fmt.Errorf("describe the frames: %w", err)
	}
	return nil
}

// Series is Run with the program that was Put and the frames that were described.
func (b *Wrapper) Series(cell Cell, repeat uint32, seed uint64) (run Result, err error) {
	return b.series(b.objects.Wrapper, cell.Frame[:], repeat, seed)
}

func (b *Wrapper) series(wrapper *Program, frame []byte, repeat uint32, seed uint64) (run Result, err error) {
	var state benchBenchState
	var before time.Duration
	begin := func() (err error) {
		if err := b.objects.State.Set(benchBenchState{Random: seed | 1}); err != nil {
			return fmt.Errorf("seed the flows: %w", err)
		}
		before, err = threadCPU()
		return err
	}
	if err := begin(); err != nil {
		return run, err
	}
	var again error // a signal has ended the run, and it begins anew
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 256), Repeat: repeat,
		Reset: func() { again = errors.Join(again, begin()) }}
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
	run.Runs, run.Surprises, run.Flow, run.Index = state.Runs, state.Surprises, state.Flow&(1<<24-1), uint8(state.Flow>>24)
	run.Output, run.CPU = options.DataOut, after-before
	return run, nil
}

// Close unloads the programs.
func (b *Wrapper) Close() error { return errors.Join(unix.Munmap(b.list), b.objects.Close()) }

func threadCPU() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0, fmt.Errorf("read the thread's CPU time: %w", err)
	}
	return time.Duration(now.Nano()), nil
}
