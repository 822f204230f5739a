// On which devices programs run: lb by XDP, and lb_release at tc, where alone one packet may become many.
package lb

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

// attachments are where programs run, and what keeps them there when this process ends.
type attachments struct {
	sync.Mutex
	pins    pin.Instance
	host    *attach.Host
	devices map[int]bool // that packets come in by
}

// Attach runs the program on a device of the calling thread's network namespace and returns the mode it got. A link that an
// earlier process pinned is switched over without a gap.
func (lb *LB) Attach(device *net.Interface, mode attach.XDPMode) (attach.XDPMode, error) {
	if err := lb.Know(device); err != nil {
		return "", err
	}
	lb.attached.Lock()
	defer lb.attached.Unlock()
	pins := &lb.attached.pins
	if err := pins.PinOwn(lb.Program(), lb.objects.TailCalls); err != nil {
		return "", err
	}
	if err := lb.release(device.Index); err != nil { // before a packet can come that needs it
		return "", err
	}
	pins.Ask(pin.HookXDP, device.Index)
	got, err := lb.attached.host.InFront(pins, lb.Program(), device, mode)
	if err == nil {
		if lb.attached.devices == nil {
			lb.attached.devices = map[int]bool{}
		}
		lb.attached.devices[device.Index] = true
	}
	return got, err
}

// releaser is lb_release on a device.
func (lb *LB) releaser(ifindex int) *attach.TC {
	pins := &lb.attached.pins
	return &attach.TC{Program: lb.objects.program("lb_release"), Hook: attach.Ingress, Ifindex: ifindex, Dir: pins.Dir, Pins: pins}
}

func (lb *LB) release(ifindex int) error {
	lb.attached.pins.Ask(attach.Ingress.Name, ifindex)
	if err := lb.releaser(ifindex).Attach(); err != nil {
		return fmt.Errorf("what goes to a server in several packets needs a program at tc: %w", err)
	}
	return nil
}

// Runs is nil if a device that was attached has its programs still; else it says what is amiss. Attach mends it.
func (lb *LB) Runs(ifindex int) error {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	return errors.Join(lb.attached.pins.Runs(pin.HookXDP, ifindex, lb.Program()), lb.releaser(ifindex).Runs())
}

// Ahead says which programs of others see a device's packets before ours, one line each.
func (lb *LB) Ahead(ifindex int) ([]string, error) {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	lines, err := lb.releaser(ifindex).Ahead()
	return append(attach.XDPBelow(ifindex), lines...), err
}

// OpenExit gives a device that frames only leave by the pass program.
func (lb *LB) OpenExit(device *net.Interface) error {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	return link.OpenExit(&lb.attached.pins, device)
}

// HasLink reports whether this instance has an XDP link on a device, of this process or an earlier one.
func (lb *LB) HasLink(ifindex int) (bool, error) {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	return lb.attached.pins.There(pin.HookXDP, ifindex)
}

// Forget drops what is kept for a device that is gone.
func (lb *LB) Forget(ifindex int) error {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	delete(lb.attached.devices, ifindex)
	return lb.attached.pins.Forget(ifindex)
}

// LacksAgent is why packets whose server is this host are lost, empty: an agent runs behind the program on every device that they come in by.
func (lb *LB) LacksAgent() string {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	return lb.attached.host.Lacks(slices.Sorted(maps.Keys(lb.attached.devices)))
}

// Repin pins again what somebody has removed the pins of, and reports whether there was any: without, all of it ends with the process.
func (lb *LB) Repin() (missed bool, err error) {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	missed, err = lb.attached.pins.Repin(&lb.objects.lbMaps)
	return missed, errors.Join(err, lb.attached.host.Repin())
}

// Attached says that every device has the program: what only an earlier one needed goes.
func (lb *LB) Attached() error {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	return attach.DropOthers(&lb.attached.pins, attach.OfChecks...)
}
