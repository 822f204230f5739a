// Devices that a daemon's program only sends frames out of: many drivers accept redirected frames only while they have an XDP program themselves.
package link

import (
	"fmt"
	"net"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

// OpenExit gives a device that an instance's program is not attached to the pass program in native mode. A link that the instance has there, also
// one that an earlier process pinned, is taken over. Another native program does as well and stays.
func OpenExit(pins *pin.Instance, device *net.Interface) error {
	ours, err := pins.There(pin.HookXDP, device.Index)
	if err != nil {
		return err
	}
	if _, mode, there := attach.XDPOn(device.Index); !ours && there && mode == attach.XDPNative {
		return nil
	}
	program, err := LoadPass()
	if err != nil {
		return err
	}
	defer program.Close()
	if _, err := attach.XDP(pins, program, device, attach.XDPNative); err != nil {
		return fmt.Errorf("attach the pass program: %w", err)
	}
	pins.Ask(pin.HookXDP, device.Index)
	return nil
}
