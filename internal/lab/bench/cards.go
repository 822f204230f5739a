package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// cardPrograms are those that are measured over network cards.
var cardPrograms = []string{"empty", "parse-swap", "minimal-ipip", "hash", "cookie", "syn-rr"}

// carrierTimeout is for how long a card may look for its link: copper takes seconds.
const carrierTimeout = 20 * time.Second

// CardCell is how many frames a second come back from a program on one card to another that a wire joins with it.
type CardCell struct {
	Program   string  `json:"program"`
	Flows     uint32  `json:"flows"`
	Mode      string  `json:"mode"` // of the program: native or generic
	MinRate   float64 `json:"min_frames_per_second"`
	Rate      float64 `json:"median_frames_per_second"`
	MaxRate   float64 `json:"max_frames_per_second"`
	LostShare float64 `json:"lost_share"` // of the frames that were sent, 0 to 1: the sender does not wait for the card
}

// Cards are two network cards that a wire joins, by their names, which nobody else uses.
type Cards struct{ Sender, Tested string }

// Check refuses cards that something else may use: it needs two, that are neither parts nor carriers of others, have no address but a link-local one, and
// no XDP program.
func (c Cards) Check() error {
	if c.Sender == c.Tested {
		return fmt.Errorf("measure over %s alone: not possible: name two cards that a wire joins", c.Sender)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list network devices: %w", err)
	}
	for _, name := range []string{c.Sender, c.Tested} {
		device, err := netdev.ReadDevice(name)
		if err != nil {
			return err
		}
		if why := inUse(&device, links); why != "" {
			return fmt.Errorf("measure over %s: refused: it %s: name a card that nobody uses", name, why)
		}
	}
	return nil
}

// inUse says what a device is used for, empty: nothing that can be seen.
func inUse(device *netdev.Device, links []netlink.Link) string {
	for _, link := range links {
		if link.Attrs().ParentIndex == device.Index && link.Attrs().Index != device.Index && link.Type() != "veth" {
			return "carries " + link.Attrs().Name
		}
	}
	for _, prefix := range device.Prefixes {
		if !prefix.Addr().IsLinkLocalUnicast() {
			return "has an address"
		}
	}
	switch {
	case device.Kind != "device":
		return "is a " + device.Kind + " device, and no card"
	case device.Driver == "":
		return "has no driver, and is no card"
	case device.Master != "":
		return "is a part of " + device.Master
	case device.XDPProgram != 0:
		return fmt.Sprintf("has XDP program %d", device.XDPProgram)
	}
	return ""
}

// cardRig has the two cards in a namespace of its own, where nobody else speaks. They keep their names, so that the kernel gives them back under these
// even if this process is killed.
type cardRig struct {
	*rig
	space  *netspace.Space
	sender *net.Interface
	cards  Cards
	home   *os.File        // the namespace that they come from
	was    map[string]bool // name -> it was up
	modes  map[string]string
}

// RunCards sends frames of the kernel's making out of one card; the program under test has them on the other and sends them back, where they are
// counted. The cards leave their network namespace meanwhile, and come back as they were. It takes about rounds * flows * (repeat * 1 us + 1 s) for
// each of six programs.
func RunCards(ctx context.Context, options Options, cards Cards) ([]CardCell, error) {
	if err := cards.Check(); err != nil {
		return nil, err
	}
	return runCards(ctx, options, cards)
}

func runCards(ctx context.Context, options Options, cards Cards) (cells []CardCell, err error) {
	r := &cardRig{cards: cards, was: map[string]bool{}, modes: map[string]string{}}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(ctx); err != nil {
		return nil, fmt.Errorf("prepare %s and %s: %w", cards.Sender, cards.Tested, err)
	}
	type sampled struct {
		subject subject
		flows   uint32
		rates   []float64
		sent    uint64
		lost    uint64
	}
	var all []*sampled
	for _, flows := range options.Flows {
		for _, s := range r.subjects() {
			if slices.Contains(cardPrograms, s.name) {
				all = append(all, &sampled{subject: s, flows: flows})
			}
		}
	}
	for round := range options.Rounds {
		if options.Progress != nil {
			options.Progress(round+1, options.Rounds)
		}
		for _, one := range all {
			crossing, rate, err := r.sample(ctx, &one.subject, one.flows, options.Repeat, uint64(round)+1)
			if err != nil {
				return nil, fmt.Errorf("measure %s at %d flows over cards: %w", one.subject.name, one.flows, err)
			}
			one.rates = append(one.rates, rate)
			one.sent += crossing.Sent
			one.lost += crossing.Sent - min(crossing.Sent, crossing.Arrived)
		}
	}
	for _, one := range all {
		rate := spreadOf(one.rates)
		cells = append(cells, CardCell{Program: one.subject.name, Flows: one.flows, Mode: r.modes[one.subject.name], MinRate: rate.min, Rate: rate.median,
			MaxRate: rate.max, LostShare: float64(one.lost) / float64(one.sent)})
	}
	return cells, nil
}

func (r *cardRig) open(ctx context.Context) (err error) {
	if r.home, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return fmt.Errorf("find the network namespace: %w", err)
	}
	if r.space, err = netspace.CreateUnnamed(); err != nil {
		return err
	}
	if err := r.space.Sysctl("net.ipv6.conf.default.disable_ipv6", "1"); err != nil {
		return err
	}
	for _, name := range []string{r.cards.Sender, r.cards.Tested} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		r.was[name] = link.Attrs().Flags&net.FlagUp != 0
		// Frames have addresses of their own: cards are to take them all.
		if err := r.space.Take(name, func(link netlink.Link) error { return errors.Join(netlink.SetPromiscOn(link), netlink.LinkSetUp(link)) }); err != nil {
			return err
		}
	}
	tested, err := r.carrier(ctx)
	if err != nil {
		return err
	}
	if r.rig, err = openRig(uint32(tested.Index)); err != nil {
		return err
	}
	tested.HardwareAddr = ourMAC
	if err := r.lb.Know(tested); err != nil {
		return err
	}
	return r.space.AttachXDP(r.cards.Sender, r.programs.Sink().FD())
}

// carrier waits until both cards have one.
func (r *cardRig) carrier(ctx context.Context) (tested *net.Interface, err error) {
	deadline := time.Now().Add(carrierTimeout)
	for {
		err = r.space.Do(func() (err error) {
			if r.sender, err = net.InterfaceByName(r.cards.Sender); err != nil {
				return err
			}
			tested, err = net.InterfaceByName(r.cards.Tested)
			return err
		})
		if err != nil {
			return nil, err
		}
		if r.sender.Flags&tested.Flags&net.FlagRunning != 0 {
			return tested, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no carrier within %v: join them by a wire", carrierTimeout)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// sample sends frames through one program, and returns how many a second came back.
func (r *cardRig) sample(ctx context.Context, s *subject, flows, frames uint32, seed uint64) (c wrapper.Crossing, rate float64, err error) {
	if err := ctx.Err(); err != nil {
		return c, 0, err
	}
	if err := s.attach(r.space, r.cards.Tested); err != nil {
		return c, 0, err
	}
	if err := r.list(s, flows, frames, seed); err != nil {
		return c, 0, err
	}
	err = r.space.Do(func() (err error) { // on a thread of its own
		device, err := netdev.ReadDevice(r.cards.Tested)
		if err != nil {
			return err
		}
		r.modes[s.name] = map[bool]string{true: "generic", false: "native"}[device.XDPGeneric]
		c, err = r.programs.Cross(r.sender.Index, frames)
		return err
	})
	switch {
	case err != nil:
		return c, 0, err
	case c.Unexpected != 0:
		return c, 0, fmt.Errorf("%d of %d frames came back with another length than expected", c.Unexpected, c.Arrived)
	case c.Arrived == 0:
		return c, 0, fmt.Errorf("none of %d frames came back: are they joined by a wire, and does nothing else hang on it?", c.Sent)
	}
	return c, float64(c.Arrived) / c.Took.Seconds(), nil
}

// close gives the cards back as they were.
func (r *cardRig) close() error {
	var errs []error
	for name, up := range r.was {
		errs = append(errs, r.space.Do(func() error {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return fmt.Errorf("give %s back: %w", name, err)
			}
			err = errors.Join(netlink.LinkSetXdpFd(link, -1), netlink.SetPromiscOff(link), netlink.LinkSetNsFd(link, int(r.home.Fd())))
			if err != nil {
				return fmt.Errorf("give %s back: %w", name, err)
			}
			return nil
		}))
		if link, err := netlink.LinkByName(name); err == nil && up {
			errs = append(errs, netlink.LinkSetUp(link))
		}
	}
	if r.rig != nil {
		errs = append(errs, r.rig.close())
	}
	if r.space != nil {
		r.space.Close()
	}
	if r.home != nil {
		errs = append(errs, r.home.Close())
	}
	return errors.Join(errs...)
}
