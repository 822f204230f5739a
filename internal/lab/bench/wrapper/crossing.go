package wrapper

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// arrivalTimeout is for how long nothing comes back until the rest counts as lost.
const arrivalTimeout = time.Second

// Timed is how many frames are timed at most.
const Timed = 4096

// inSwitch is how many frames are on their way through a switch at once: of more, which pass many devices, the kernel leaves some to another thread.
const inSwitch = 24

// Crossing is what became of frames that were sent over a pair of devices.
type Crossing struct {
	Sent, Arrived uint64
	Unexpected    uint64        // of those that arrived, not as long as the program under test should have made them
	Elsewhere     uint64        // of those that arrived, handled in the time of another thread
	CPU           time.Duration // of the thread
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
	return b.cross(b.objects.Sender, ifindex, frames, frames)
}

// CrossSwitch does so with a switch: each frame goes to one of the first ports, by its client's port. The device is one of the ports.
func (b *Wrapper) CrossSwitch(ifindex int, frames, ports uint32) (c Crossing, err error) {
	if err := errors.Join(b.objects.Forwarders.Set(ports), b.objects.InSwitch.Set(uint32(inSwitch))); err != nil {
		return c, fmt.Errorf("set the ports that frames go to: %w", err)
	}
	return b.cross(b.objects.Spread, ifindex, frames, frames)
}

// TimeSwitch does so frame by frame, to the first port, at most Timed of them. It returns for how long each was on its way, in ns; 0: another thread had it.
func (b *Wrapper) TimeSwitch(ifindex int, frames uint32) (c Crossing, took []uint32, err error) {
	if err := errors.Join(b.objects.Forwarders.Set(uint32(1)), b.objects.InSwitch.Set(uint32(1))); err != nil {
		return c, nil, fmt.Errorf("set the port that frames go to: %w", err)
	}
	if c, err = b.cross(b.objects.Spread, ifindex, frames, 1); err != nil {
		return c, nil, err
	}
	took = make([]uint32, Timed)
	if err := b.objects.Took.Get(took); err != nil {
		return c, nil, fmt.Errorf("read how long frames were on their way: %w", err)
	}
	return c, took[:min(c.Arrived, Timed)], nil
}

func (b *Wrapper) cross(sender *Program, ifindex int, frames, atOnce uint32) (c Crossing, err error) {
	err = errors.Join(b.objects.State.Set(benchBenchState{}), b.objects.Crossing.Set(benchBenchCrossing{}))
	if err != nil {
		return c, fmt.Errorf("begin the list: %w", err)
	}
	frame := b.listed.Load().cell.whole()
	options := ebpf.RunOptions{Data: frame, Context: xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(ifindex)},
		Repeat: atOnce, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES}
	start, err := threadCPU()
	if err != nil {
		return c, err
	}
	for news := time.Now(); c.Sent < uint64(frames) || c.Arrived < c.Sent; {
		if c.Sent < uint64(frames) {
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
