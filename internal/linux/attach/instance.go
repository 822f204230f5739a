// What an instance leaves behind, links, filters and maps: undone when a start fails, dropped when it is not needed any more, removed.
package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/linux/internal/tcx"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

// DropOthers removes what only an earlier process had: links on devices that this one was not told of, maps of its programs, and maps of
// other layouts of the same role ("lb-v1": lb). Filters of hooks that others see to are left. Call it when every device has been attached to.
func DropOthers(p *pin.Instance, others ...Hook) error {
	if p.Dir == "" {
		return nil
	}
	asked := func(ifindex int) bool { return p.Asked(pin.HookXDP, ifindex) }
	if err := errors.Join(p.DropLinks(giveBackPin), leave(p.Dir, asked)); err != nil {
		return fmt.Errorf("detach from a device that is not named any more: %w", err)
	}
	if err := sweepFilters(p.Dir, func(at place) bool { return slices.Contains(others, at.hook) || p.Asked(at.hook.Name, at.ifindex) }); err != nil {
		return fmt.Errorf("detach from a device that is not named any more: %w", err)
	}
	if err := pin.DropUnused(p.Dir); err != nil {
		return fmt.Errorf("remove what an earlier program needed: %w", err)
	}
	return p.DropLayouts()
}

// BeforeStart looks at what is pinned under dir. undo removes what has been pinned since: what a start that fails has attached, and, if
// it took nothing over, its maps.
func BeforeStart(dir string) (undo func() error, err error) {
	look := func() (pins []string, err error) {
		for _, pattern := range []string{"link-*", "*-v*"} { // links first: no program runs on maps that are gone
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return nil, err
			}
			pins = append(pins, found...)
		}
		return pins, nil
	}
	before, err := look()
	if err != nil {
		return nil, err
	}
	filters, err := ownFilters(dir)
	if err != nil {
		return nil, err
	}
	claims := pin.Claims(dir)
	return func() error {
		if err := sweepFilters(dir, func(at place) bool { return filters[at] }); err != nil {
			return fmt.Errorf("undo the start: %w", err)
		}
		had := func(ifindex int) bool { // a load balancer may have taken it over or given it back meanwhile
			claimed := func(c pin.Claimed) bool { return c.Ifindex == ifindex }
			return slices.Contains(before, pin.LinkPath(dir, pin.HookXDP, ifindex)) || slices.ContainsFunc(claims, claimed)
		}
		if err := leave(dir, had); err != nil {
			return fmt.Errorf("undo the start: %w", err)
		}
		after, err := look()
		if err != nil {
			return err
		}
		isLink := func(pin string) bool { return strings.HasPrefix(filepath.Base(pin), "link-") }
		tookOver := slices.ContainsFunc(before, isLink) || len(claims) > 0
		for _, pin := range after {
			if slices.Contains(before, pin) || (tookOver && !isLink(pin)) || givenBack(pin, claims) {
				continue
			}
			if err := errors.Join(giveBackPin(pin), os.RemoveAll(pin)); err != nil {
				return fmt.Errorf("undo the start: %w", err)
			}
		}
		return pin.DropUnused(dir)
	}, nil
}

// givenBack reports whether a pin is of a device that was claimed before.
func givenBack(path string, claims []pin.Claimed) bool {
	return slices.ContainsFunc(claims, func(c pin.Claimed) bool {
		return path == pin.LinkPath(filepath.Dir(path), pin.HookXDP, c.Ifindex)
	})
}

// Detach removes links, filters and maps of any role and layout that an instance has left under dir; filters in the calling thread's
// network namespace. Nothing there is no error.
func Detach(dir string) error {
	nothing := func(int) bool { return false }
	if err := errors.Join(RemoveFilters(dir), leave(dir, nothing)); err != nil {
		return err
	}
	for _, path := range pin.Links(dir, 0) {
		if err := giveBackPin(path); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the pins in %s: %w", dir, err)
	}
	return nil
}

// FiltersElsewhere is an error where the programs that an instance has pinned under dir run on a device of another network namespace than
// the calling thread's, and may have filters beside them: those are found in their own namespace alone.
func FiltersElsewhere(dir string) error {
	if tcx.Have() == nil {
		return nil // pins are all there is
	}
	elsewhere := fmt.Errorf("a program pinned in %s runs on a device of another network namespace, and filters of clsact beside it are found there alone: "+
		"run this in the namespace that the daemon ran in (nsenter --net=/run/netns/NAME)", dir)
	here, err := hostDir(dir)
	if err != nil {
		return err
	}
	for _, claim := range pin.Claims(dir) {
		if claim.Host != here {
			return elsewhere
		}
	}
	for _, path := range pin.Links(dir, 0) {
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			continue
		}
		ifindex, program := pin.LinkIsOn(l)
		l.Close()
		if ifindex == 0 {
			continue // the device is gone, and its filters with it
		}
		device, err := netlink.LinkByIndex(ifindex)
		if err != nil || device.Attrs().Xdp == nil || device.Attrs().Xdp.ProgId != uint32(program) {
			return elsewhere
		}
	}
	return nil
}
