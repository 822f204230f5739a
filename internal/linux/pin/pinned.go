// What instances of either role have pinned.
package pin

import (
	"net"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf/link"
)

// Links are the pins of an instance's links on a device, of either role; ifindex 0: on any device. See pins.link.
func Links(dir string, ifindex int) []string {
	device := "*"
	if ifindex != 0 {
		device = strconv.Itoa(ifindex)
	}
	found, _ := filepath.Glob(filepath.Join(dir, "link-*-"+device))
	return found
}

// Any tells whether an instance, of either role, has left programs on devices.
func Any(dir string) bool { return len(Links(dir, 0)) > 0 || len(Claims(dir)) > 0 }

// Role returns lb or agent, as the maps that an instance has left under dir are named for; empty: there are none, or of both.
func Role(dir string) string {
	lb, _ := filepath.Glob(filepath.Join(dir, "lb-v*"))
	agent, _ := filepath.Glob(filepath.Join(dir, "agent-v*"))
	switch {
	case len(lb) > 0 && len(agent) == 0:
		return "lb"
	case len(agent) > 0 && len(lb) == 0:
		return "agent"
	}
	return ""
}

// Devices returns the devices of the calling thread's network namespace that an instance's programs are on.
func Devices(dir string) (names []string) {
	devices, err := net.Interfaces()
	if err != nil {
		return nil
	}
	claims := Claims(dir)
	for _, device := range devices {
		behind := func(c Claimed) bool { return c.Ifindex == device.Index }
		if len(Links(dir, device.Index)) > 0 || slices.ContainsFunc(claims, behind) {
			names = append(names, device.Name)
		}
	}
	return names
}

// Programs returns the XDP programs of the links that an instance, of either role, has pinned under dir for a device.
func Programs(dir string, ifindex int) (ids []uint32) {
	for _, pin := range Links(dir, ifindex) {
		pinned, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			continue
		}
		if info, err := pinned.Info(); err == nil && info.XDP() != nil && info.XDP().Ifindex == uint32(ifindex) {
			ids = append(ids, uint32(info.Program))
		}
		pinned.Close()
	}
	return ids
}
