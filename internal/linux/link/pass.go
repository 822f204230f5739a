// The pass program: what the far end of a veth pair needs, so that frames that a program sends from this end arrive at once.
package link

import (
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/ballast-lb/ballast/internal/linux/attach"
)

// LoadPass loads the program alone.
func LoadPass() (*ebpf.Program, error) {
	var objects struct {
		Pass *ebpf.Program `ebpf:"pass"`
	}
	if err := loadLinkObjects(&objects, nil); err != nil {
		return nil, fmt.Errorf("load the pass program: %w: run as root", err)
	}
	return objects.Pass, nil
}

// AttachPass gives a device of the calling thread's network namespace the pass program, natively. No process or pin holds it: it stays until
// DetachPass, or until the device goes. Where another native program is, which does as well, that is left: other describes it.
func AttachPass(device *net.Interface) (other string, err error) {
	program, err := LoadPass()
	if err != nil {
		return "", err
	}
	defer program.Close()
	at := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: device.Index, Name: device.Name}}
	err = netlink.LinkSetXdpFdWithFlags(at, program.FD(), nl.XDP_FLAGS_DRV_MODE|nl.XDP_FLAGS_UPDATE_IF_NOEXIST)
	if err == nil {
		return "", nil
	}
	id, mode, attached := attach.XDPOn(device.Index)
	switch {
	case !attached:
		return "", fmt.Errorf("attach the pass program to %s: %w: is it an end of a veth pair?", device.Name, err)
	case mode == attach.XDPGeneric:
		return "", fmt.Errorf("attach the pass program to %s: a program runs there in generic mode, which does not do: ip link set dev %[1]s xdpgeneric off", device.Name)
	case attach.IsProgram(id, program):
		return "", nil
	}
	return attach.OtherProgram(device), nil
}

// DetachPass takes the pass program off a device, and no other.
func DetachPass(device *net.Interface) error {
	program, err := LoadPass()
	if err != nil {
		return err
	}
	defer program.Close()
	id, _, attached := attach.XDPOn(device.Index)
	if !attached || !attach.IsProgram(id, program) {
		return fmt.Errorf("detach from %s: the pass program is not attached there", device.Name)
	}
	at := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: device.Index, Name: device.Name}}
	if err := netlink.LinkSetXdpFdWithFlags(at, -1, nl.XDP_FLAGS_DRV_MODE); err != nil {
		return fmt.Errorf("detach the pass program from %s: %w", device.Name, err)
	}
	return nil
}
