// Package programs keeps an agent's programs attached to the devices that packets come in by and answers leave by.
package programs

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/daemon/devices"
	"github.com/ballast-lb/ballast/internal/daemon/exits"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// Programs are on the devices that packets come in by and answers leave by.
type Programs struct {
	devices.Attachments
	Interfaces []string // that packets come in by; empty: those of the servers' addresses
	Exits      exits.Devices

	// To be read alone.
	Unattached string   // why the programs were not attached to a device that they should be on, empty: they were
	Unmarked   []string // devices that answers may leave by and that could not be attached to
}

// Attach gives the programs to devices that do not have them yet. The addresses are those of this host's server entries.
func (p *Programs) Attach(addresses []netip.Addr) error {
	names, mode := p.Interfaces, attach.XDPNone
	if len(names) == 0 {
		for _, address := range addresses {
			found, err := netdev.InterfacesOf([]netip.Addr{address})
			if err != nil {
				return err
			}
			if len(found) == 0 { // a loopback's: packets come in by any way
				mode = p.Mode
			}
			names = append(names, found...)
		}
		slices.Sort(names)
		names = slices.Compact(names)
		if len(addresses) == 0 && p.Any() {
			return nil // what was found before is the better guess
		}
	}
	found, err := devices.Find(names)
	if err != nil {
		return err
	}
	if err := p.Ensure(found, p.Mode); err != nil {
		return err
	}
	return p.attachEgress(names, mode)
}

// attachEgress gives the programs to the devices that answers may leave by as well, or they would leave unmarked: at tc alone, if mode requires
// that no tunnels come in there, so that XDP may be anybody's. A device that a route led out of keeps them: its route may come back, and what
// it sent is echoed.
func (p *Programs) attachEgress(names []string, mode attach.XDPMode) error {
	egress, _, err := netdev.EgressDevices(unix.AF_UNSPEC)
	if err != nil {
		return err
	}
	p.Unmarked = nil
	for _, name := range egress {
		if slices.Contains(names, name) {
			continue
		}
		found, err := devices.Find([]string{name})
		if err == nil {
			err = p.Ensure(found, attach.XDPNone)
		}
		if err != nil { // the others do their work
			p.Unmarked = append(p.Unmarked, fmt.Sprintf("answers that leave by %s are not marked, and break their connections: %v", name, err))
		} else if err = p.Ensure(found, mode); err != nil {
			p.Unmarked = append(p.Unmarked, fmt.Sprintf("tunnels that come in by %s are not taken: %v", name, err))
		}
	}
	if len(names) == 0 {
		return nil // a device that is gone may come back
	}
	return p.Drop(append(egress, names...))
}

// Note remembers how attaching ended.
func (p *Programs) Note(err error) {
	before := p.Unattached
	if p.Unattached = ""; err == nil {
		return
	}
	if p.Unattached = err.Error(); p.Unattached != before {
		p.Log.Error("devices not attached", "error", err)
	}
}

// Obstacles are why packets and answers miss the programs; problems besides: why some may. none: no device takes packets out of tunnels.
func (p *Programs) Obstacles() (found, problems []string, none bool) {
	if p.Unattached != "" {
		found = append(found, p.Unattached)
	}
	down, all := p.Down()
	if all {
		return append(append(found, down...), p.Problems()...), p.Ahead(), true
	}
	return append(found, p.Problems()...), append(down, p.Ahead()...), false
}
