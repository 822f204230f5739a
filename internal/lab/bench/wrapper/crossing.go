package wrapper

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// arrivalTimeout is for how long nothing comes back until the rest counts as lost.
const arrivalTimeout = time.Second

// waitShift is that of bpf/bench/crossing.h: in how many parts of the mean the time from frame to frame is told.
const waitShift = 12

// How often a paced sender looks at the time in one system call, as frames wait while the next one begins, and before what it has sent goes on: the kernel's
// 64 would cost each frame up to 9 us.
const (
	pacedRuns  = 1 << 18
	pacedBatch = 4
)

// inSwitch is how many frames are on their way through a switch at once: of more, which pass many devices, the kernel leaves some to another thread.
const inSwitch = 24

// Crossing is what became of frames that were sent over a pair of devices.
type Crossing struct {
	Sent, Arrived uint64
	Unexpected    uint64        // of those that arrived, not as long as the program under test should have made them
	Elsewhere     uint64        // of those that arrived, handled in the time of another thread
	CPU           time.Duration // of the thread
	Took          time.Duration // until the last one had come back
}

// xdpContext is struct xdp_md of linux/bpf.h.
type xdpContext struct{ Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32 }

// Sink counts and drops what comes back.
func (b *Wrapper) Sink() *Program { return b.objects.Sink }

// Deliver is the program of a switch's ports: frames go to the port that their MAC address says, or have arrived.
func (b *Wrapper) Deliver() *Program { return b.objects.Deliver }

// Port makes a device of the calling thread's network namespace a port of the switch.
func (b *Wrapper) Port(number uint32, ifindex int) error {
	if err := b.objects.Ports.Put(number, uint32(ifindex)); err != nil {
		return fmt.Errorf("make device %d port %d of a switch: %w", ifindex, number, err)
	}
	return nil
}

// Cross sends at least so many frames out of a device of the thread's network namespace, on which Sink is attached, and waits until all have come
// back, or none does any more. They are real frames (BPF_PROG_RUN in live mode), those that were listed. The calling goroutine must be
// locked to its thread: the kernel does the work of both ends in that thread's time, unless it is busy with others.
func (b *Wrapper) Cross(ifindex int, frames uint32) (c Crossing, err error) {
	return b.cross(b.objects.Sender, ifindex, frames, frames, 0)
}

// Pace is how frames go through a switch.
type Pace struct {
	Ports uint32        // that they go to, by their client's port: the first so many
	Alone bool          // only one is on its way at once
	Mean  time.Duration // from when one is due until the next is, at random (Poisson), all of the list; 0: each is due once there is room for it
}

// CrossSwitch does so with a switch. The device is one of its ports. No frame of the list is sent twice.
func (b *Wrapper) CrossSwitch(ifindex int, frames uint32, pace Pace) (c Crossing, err error) {
	atOnce, runs, batch := uint32(inSwitch), frames, uint32(0)
	if pace.Alone {
		atOnce, batch = 1, 1
	} else if pace.Mean > 0 {
		runs, batch = pacedRuns, pacedBatch
		b.wait()
	}
	err = errors.Join(b.objects.Forwarders.Set(pace.Ports), b.objects.InSwitch.Set(atOnce), b.objects.Pace.Set(uint32(pace.Mean.Nanoseconds())))
	if err != nil {
		return c, fmt.Errorf("set the pace of frames: %w", err)
	}
	return b.cross(b.objects.Spread, ifindex, frames, runs, batch)
}

// wait draws how long after each frame of the list the next one is due.
func (b *Wrapper) wait() {
	random := rand.New(rand.NewPCG(1, 1))
	for i := range b.listed.Load().flows {
		b.list[i].Wait = uint16(min(math.MaxUint16, random.ExpFloat64()*(1<<waitShift)))
	}
}

// Took returns how long each frame that a switch has sent was on its way since it was due, in ns; 0: another thread had it at the end.
func (b *Wrapper) Took(sent uint64) ([]uint32, error) {
	took := make([]uint32, Listed)
	if err := b.objects.Took.Get(took); err != nil {
		return nil, fmt.Errorf("read how long frames were on their way: %w", err)
	}
	return took[:sent], nil
}

// cross runs the sender so often in a system call, and so often until what it has sent goes on; 0: as often as the kernel likes.
func (b *Wrapper) cross(sender *Program, ifindex int, frames, runs, batch uint32) (c Crossing, err error) {
	err = errors.Join(b.objects.State.Set(benchBenchState{}), b.objects.Crossing.Set(benchBenchCrossing{}))
	if err != nil {
		return c, fmt.Errorf("begin the list: %w", err)
	}
	frame := b.listed.Load().cell.whole()
	options := ebpf.RunOptions{Data: frame, Context: xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(ifindex)},
		Repeat: runs, BatchSize: batch, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES}
	start, err := threadCPU()
	if err != nil {
		return c, err
	}
	begin := time.Now()
	for news := begin; c.Sent < uint64(frames) || c.Arrived < c.Sent; {
		if c.Sent < uint64(frames) {
			if err := b.objects.Resumed.Set(uint32(1)); err != nil {
				return c, fmt.Errorf("begin to send: %w", err)
			}
			if _, err := sender.Run(&options); err != nil {
				return c, fmt.Errorf("send frames: %w", err)
			}
		}
		before := c
		if err := b.readCrossing(&c); err != nil {
			return c, err
		}
		if c != before {
			news = time.Now()
			c.Took = news.Sub(begin)
		} else if time.Since(news) > arrivalTimeout {
			break
		}
	}
	end, err := threadCPU()
	c.CPU = end - start
	return c, err
}

func (b *Wrapper) readCrossing(c *Crossing) error {
	var state benchBenchState
	var crossing benchBenchCrossing
	if err := errors.Join(b.objects.State.Get(&state), b.objects.Crossing.Get(&crossing)); err != nil {
		return fmt.Errorf("read what has crossed: %w", err)
	}
	c.Sent, c.Arrived, c.Unexpected, c.Elsewhere = state.Runs, crossing.Arrived, crossing.Unexpected, crossing.Elsewhere
	return nil
}
