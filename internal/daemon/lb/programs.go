// The program on the devices that packets come in by.
package lb

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/devices"
	"github.com/ballast-lb/ballast/internal/daemon/exits"
	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/plan"
)

// programs are the program's attachments. All methods are safe for concurrent use.
type programs struct {
	mutex       sync.Mutex // guards what follows, and the program's links
	attachments devices.Attachments
	exits       exits.Devices
	pending     []*net.Interface // that are not attached to yet: there is no state
	failed      string           // why they are not although there is one
}

// attachedTo is how things stand with the devices.
type attachedTo struct {
	modes    map[string]string // by device
	problems []string
	ahead    []string // programs of others that see packets before ours
	down     []string // devices that no packet can come in by
	allDown  bool
}

func (p *programs) status() (s attachedTo) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	s.modes, s.problems, s.ahead = p.attachments.Modes(), p.attachments.Problems(), p.attachments.Ahead()
	s.down, s.allDown = p.attachments.Down()
	if p.failed != "" {
		s.problems = append(s.problems, p.failed)
	}
	return s
}

// devices are the indexes of those that the program is on.
func (p *programs) devices() []int {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return slices.Collect(maps.Keys(p.attachments.Running()))
}

// cannotForward is why no packet for a VIP is forwarded, empty: some are.
func (p *programs) cannotForward() string {
	s := p.status()
	if !s.allDown {
		return ""
	}
	return cmp.Or(strings.Join(append(s.problems, s.down...), "; "), "the program is attached to no device")
}

// receives is why packets that come in by a device are not forwarded, nil: they are. The program sees frames of a VLAN on the device below it, too.
func (p *programs) receives(device *net.Interface) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	running := p.attachments.Running()
	for _, index := range []int{device.Index, netdev.Below(device)} {
		if _, runs := running[index]; runs {
			return nil
		}
	}
	return fmt.Errorf("packets that come in by %s are not forwarded: start this load balancer with --interface %s", device.Name, device.Name)
}

// look finds what is no longer attached, and mends it.
func (p *programs) look(now time.Time) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.attachments.Look(now)
}

// follow makes the devices that next hops leave by accept the program's frames.
func (p *programs) follow(paths map[netip.Addr]plan.Path, now time.Time) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.exits.Follow(paths, p.attachments.Running(), now)
}

// attach puts the program on the devices, in the place of an earlier one, and calls done.
func (p *programs) attach(interfaces []*net.Interface, paths map[netip.Addr]plan.Path, patience time.Duration, done func() error) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	ensure := func() error { return p.attachments.Ensure(interfaces, p.attachments.Mode) }
	err := devices.WhileBusy(p.attachments.Log, patience, ensure)
	if err == nil {
		p.exits.Follow(paths, p.attachments.Running(), time.Now()) // before links that nobody asked for are dropped
		err = done()
	}
	if p.failed = ""; err != nil {
		p.failed = err.Error()
		return err
	}
	p.pending = nil
	return nil
}

// waiting are the devices that are not attached to yet.
func (p *programs) waiting() []*net.Interface {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.pending
}

// checkSender sends first packets of health checks as clients' packets are sent.
type checkSender struct{ *parts }

func (s checkSender) Send(p checkroute.Packet) error {
	return s.tables.Path().SendCheck(p.Service, p.Server, p.Direct, p.IP)
}

func (s checkSender) Try() error { return s.tables.Path().TrySendCheck() }

func (s checkSender) ByXDP(ifindex uint32) bool { return s.programs.exits.ByXDP(ifindex) }
