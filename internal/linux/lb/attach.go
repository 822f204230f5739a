// On which devices programs run: lb by XDP and, where services with session tls are, lb_release at tc: one packet may become many there alone.
package lb

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

// attachments are where programs run, and what keeps them there when this process ends.
type attachments struct {
	sync.Mutex
	pins     pin.Instance
	devices  []net.Interface // that lb runs on
	releases bool            // there is a service with session tls, or was
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
	if err := pins.PinOwn(lb.Program(), lb.objects.Ways); err != nil {
		return "", err
	}
	if lb.attached.releases { // before a packet can come that needs it
		if err := lb.release(device.Index); err != nil {
			return "", err
		}
	}
	pins.Ask(attach.HookXDP, device.Index)
	got, err := attach.XDP(pins, lb.Program(), device, mode)
	if err != nil {
		return "", err
	}
	others := slices.DeleteFunc(lb.attached.devices, func(old net.Interface) bool { return old.Index == device.Index || old.Name == device.Name })
	lb.attached.devices = append(others, *device)
	return got, nil
}

// releaser is lb_release on a device.
func (lb *LB) releaser(ifindex int) *attach.TC {
	pins := &lb.attached.pins
	return &attach.TC{Program: lb.objects.program("lb_release"), Hook: attach.Ingress, Ifindex: ifindex, Dir: pins.Dir, Pins: pins}
}

func (lb *LB) release(ifindex int) error {
	lb.attached.pins.Ask(attach.Ingress.Name, ifindex)
	if err := lb.releaser(ifindex).Attach(); err != nil {
		return fmt.Errorf("services with session tls need a program at tc: %w", err)
	}
	return nil
}

// enableReleases loads and attaches what services with session tls need.
func (lb *LB) enableReleases() error {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	if err := lb.objects.need(programsOfSessions); err != nil || lb.attached.releases {
		return err
	}
	for _, device := range lb.attached.devices {
		if err := lb.release(device.Index); err != nil {
			return err
		}
	}
	lb.attached.releases = true
	return lb.objects.HoldsEnabled.Set(uint32(1))
}

// Runs is nil if a device that was attached has its programs still; else it says what is amiss. Attach mends it.
func (lb *LB) Runs(ifindex int) error {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	err := lb.attached.pins.Runs(attach.HookXDP, ifindex, lb.Program())
	if lb.attached.releases {
		err = errors.Join(err, lb.releaser(ifindex).Runs())
	}
	return err
}

// Forget drops what is kept for a device that is gone.
func (lb *LB) Forget(ifindex int) error {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	lb.attached.devices = slices.DeleteFunc(lb.attached.devices, func(old net.Interface) bool { return old.Index == ifindex })
	return lb.attached.pins.Forget(ifindex)
}

// Repin pins again what somebody has removed the pins of, and reports whether there was any: without, all of it ends with the process.
func (lb *LB) Repin() (missed bool, err error) {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	return lb.attached.pins.Repin(&lb.objects.lbMaps)
}

// Attached says that every device has the program: what only an earlier one needed goes.
func (lb *LB) Attached() error {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	return attach.DropOthers(&lb.attached.pins)
}
