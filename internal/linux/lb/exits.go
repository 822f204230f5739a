// Devices that the program only sends frames out of: many drivers accept redirected frames only while they have an XDP program themselves.
package lb

import (
	"fmt"
	"net"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/link"
)

// OpenExit gives a device that the program is not attached to the pass program in native mode. A link that this instance has there, also
// one that an earlier process pinned, is taken over. Another native program does as well and stays.
func (lb *LB) OpenExit(device *net.Interface) error {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	pins := &lb.attached.pins
	old, err := pins.LinkOn(attach.HookXDP, device.Index)
	if err != nil {
		return err
	}
	if _, mode, there := attach.XDPOn(device.Index); old == nil && there && mode == attach.XDPNative {
		return nil
	}
	program, err := link.LoadPass()
	if err != nil {
		return err
	}
	defer program.Close()
	if _, err := attach.XDP(pins, program, device, attach.XDPNative); err != nil {
		return fmt.Errorf("attach the pass program: %w", err)
	}
	pins.Ask(attach.HookXDP, device.Index)
	return nil
}

// HasLink reports whether this instance has an XDP link on a device, of this process or an earlier one.
func (lb *LB) HasLink(ifindex int) (bool, error) {
	lb.attached.Lock()
	defer lb.attached.Unlock()
	return lb.attached.pins.There(attach.HookXDP, ifindex)
}
