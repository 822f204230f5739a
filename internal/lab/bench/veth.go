package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// VethTarget is the least median ratio that a load balancer aims at.
const VethTarget = 0.8

// crossings bounds how often a sample is taken until it is undisturbed.
const crossings = 50

// elsewherePart is the part of the frames, 1 in so many, that may be handled in another thread's time.
const elsewherePart = 100

// Devices of the namespace in which frames cross.
const (
	senderDevice = "sender"
	testedDevice = "tested"
)

// VethCell is what it costs to send a frame over a pair of veth devices, and back from a program on the other one: all of the way, of which
// the program is a part.
type VethCell struct {
	Program  string  `json:"program"`
	Flows    uint32  `json:"flows"`
	MinNS    float64 `json:"min_ns"` // CPU time per frame
	MedianNS float64 `json:"median_ns"`
	MaxNS    float64 `json:"max_ns"`
	// Of the frames a second that are possible, to those of the empty program, fed the same in the same round.
	MinRatio     float64 `json:"min_ratio"`
	Ratio        float64 `json:"ratio"` // median
	MaxRatio     float64 `json:"max_ratio"`
	Verdict      string  `json:"verdict"` // that every packet got
	VerdictCount uint64  `json:"verdict_count"`
}

// vethRig has the two devices, in a namespace of its own.
type vethRig struct {
	*rig
	space          *netspace.Space
	sender, tested *net.Interface
}

// RunVeth measures every program at every number of flows. Frames are sent by the kernel out of one device of a pair; the program under test
// has them on the other and sends them back; there they are counted and dropped. All of that is one CPU's work, and is timed as that. Frames are those
// that Run feeds. It takes about rounds * repeat * flows * 10 us.
func RunVeth(ctx context.Context, options Options) ([]VethCell, error) {
	r, err := openVethRig()
	if err != nil {
		return nil, err
	}
	cells, err := r.run(ctx, &options)
	return cells, errors.Join(err, r.close())
}

func openVethRig() (r *vethRig, err error) {
	r = &vethRig{}
	if r.space, err = netspace.CreateUnnamed(); err != nil {
		return nil, err
	}
	if err = r.open(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *vethRig) open() error {
	if err := r.space.Sysctl("net.ipv6.conf.default.disable_ipv6", "1"); err != nil { // nobody speaks but us
		return err
	}
	end := func(device string) netspace.End { return netspace.End{Space: r.space, Interface: device, MTU: 1500} }
	if err := netspace.Connect(end(senderDevice), end(testedDevice)); err != nil {
		return err
	}
	err := r.space.Do(func() (err error) {
		if r.sender, err = net.InterfaceByName(senderDevice); err != nil {
			return err
		}
		r.tested, err = readdress(testedDevice, ourMAC)
		return err
	})
	if err != nil {
		return fmt.Errorf("prepare the devices: %w", err)
	}
	if r.rig, err = openRig(uint32(r.tested.Index)); err != nil {
		return err
	}
	if err := errors.Join(r.lb.Know(r.tested), r.hits.Know(r.tested)); err != nil {
		return err
	}
	return r.space.AttachXDP(senderDevice, r.programs.Sink().FD())
}

// readdress gives a device of the calling thread's namespace another MAC address.
func readdress(name string, address net.HardwareAddr) (*net.Interface, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetHardwareAddr(link, address); err != nil {
		return nil, err
	}
	return net.InterfaceByName(name)
}

func (r *vethRig) close() error {
	defer r.space.Close()
	if r.rig == nil {
		return nil
	}
	return r.rig.close()
}

// pair collects the samples of one cell and of the empty program beside it, in ns of CPU time per frame.
type pair struct {
	subject, empty subject
	flows          uint32
	times          [2][]float64 // of the two
	count          uint64
}

func (r *vethRig) pairs(options *Options) (all []*pair) {
	subjects := r.subjects()
	for _, flows := range options.Flows {
		for _, s := range subjects {
			empty := subjects[0]
			empty.cell = s.cell
			empty.cell.Growth = 0
			all = append(all, &pair{subject: s, empty: empty, flows: flows})
		}
	}
	return all
}

// run takes one sample of every pair in each round: now one first, now the other.
func (r *vethRig) run(ctx context.Context, options *Options) ([]VethCell, error) {
	all := r.pairs(options)
	order := slices.Clone(all)
	for round := range options.Rounds {
		if options.Progress != nil {
			options.Progress(round+1, options.Rounds)
		}
		for _, p := range order {
			if err := r.samplePair(ctx, p, options.Repeat, round); err != nil {
				return nil, fmt.Errorf("measure %s at %d flows over veth: %w", p.subject.name, p.flows, err)
			}
		}
		slices.Reverse(order)
	}
	return vethCells(all), nil
}

func (r *vethRig) samplePair(ctx context.Context, p *pair, frames uint32, round int) error {
	for i := range 2 {
		which, s := (i+round)%2, &p.subject
		if which == 1 {
			s = &p.empty
		}
		crossing, err := r.cross(ctx, s, p.flows, frames, uint64(round)*0x9e3779b97f4a7c15+1)
		if err != nil {
			return err
		}
		p.times[which] = append(p.times[which], float64(crossing.CPU.Nanoseconds())/float64(crossing.Sent))
		if which == 0 {
			p.count += crossing.Sent
		}
	}
	return nil
}

// attach has a subject's program receive what comes in by a device.
func (s *subject) attach(space *netspace.Space, device string) error {
	if err := space.AttachXDP(device, s.program.FD()); err != nil || s.prepare == nil {
		return err
	}
	return s.prepare()
}

// list gives the sender the frames of a subject.
func (r *rig) list(s *subject, flows, frames uint32, seed uint64) error {
	cell := s.cell
	cell.Flows = s.flows(flows)
	if s.fresh != nil {
		frames *= 2 // more are sent than wanted
	}
	return r.programs.List(&cell, s.draw(&cell, frames, seed), nil)
}

// cross takes one sample, as often as it takes to have nearly all of it in this thread's time, and checks it.
func (r *vethRig) cross(ctx context.Context, s *subject, flows, frames uint32, seed uint64) (c wrapper.Crossing, err error) {
	if err := s.attach(r.space, testedDevice); err != nil {
		return c, err
	}
	for i := range crossings {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		if i == 0 || s.fresh != nil {
			if err := r.list(s, flows, frames, seed); err != nil {
				return c, err
			}
		}
		before, err := s.counters()
		if err != nil {
			return c, err
		}
		err = r.space.Do(func() (err error) { // on a thread of its own
			c, err = r.programs.Cross(r.sender.Index, frames)
			return err
		})
		if err != nil {
			return c, err
		}
		after, err := s.counters()
		if err != nil {
			return c, err
		}
		if c.Sent < uint64(frames) || c.Arrived != c.Sent || c.Unexpected != 0 {
			return c, fmt.Errorf("%d of %d frames came back, %d of them of another length than expected", c.Arrived, c.Sent, c.Unexpected)
		}
		if err := r.checkCounters(s, before, after, c.Sent); err != nil {
			return c, err
		}
		if c.Elsewhere*elsewherePart <= c.Sent {
			return c, nil
		}
	}
	return c, fmt.Errorf("the kernel handled frames in other threads' time %d times: measure on a quieter machine, or with a lower --repeat", crossings)
}

func vethCells(all []*pair) (cells []VethCell) {
	for _, p := range all {
		ratios := make([]float64, len(p.times[0]))
		for i := range ratios {
			ratios[i] = p.times[1][i] / p.times[0][i]
		}
		time, ratio := spreadOf(p.times[0]), spreadOf(ratios)
		cells = append(cells, VethCell{Program: p.subject.name, Flows: p.flows, MinNS: time.min, MedianNS: time.median, MaxNS: time.max,
			MinRatio: ratio.min, Ratio: ratio.median, MaxRatio: ratio.max, Verdict: cmp.Or(p.subject.verdict, "tx"), VerdictCount: p.count})
	}
	return cells
}
