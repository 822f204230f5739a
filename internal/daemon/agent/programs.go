// Which devices have an agent's programs.
package agent

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

// programs are on the devices that packets come in by and answers leave by.
type programs struct {
	devices.Attachments
	interfaces []string // that packets come in by; empty: those of the servers' addresses
	exits      exits.Devices

	unattached string   // why the programs were not attached to a device that they should be on, empty: they were
	unmarked   []string // devices that answers may leave by and that could not be attached to
}

// attach gives the programs to devices that do not have them yet. The addresses are those of this host's server entries.
func (p *programs) attach(addresses []netip.Addr) error {
	names, mode := p.interfaces, attach.XDPNone
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

// attachEgress gives the programs to the devices that answers may leave by as well, or they would leave unmarked: at tc alone, if mode says
// that no tunnels come in there, so that XDP may be anybody's. A device that a route led out of keeps them: its route may come back, and what
// it sent is echoed.
func (p *programs) attachEgress(names []string, mode attach.XDPMode) error {
	egress, _, err := netdev.EgressDevices(unix.AF_UNSPEC)
	if err != nil {
		return err
	}
	p.unmarked = nil
	for _, name := range egress {
		if slices.Contains(names, name) {
			continue
		}
		found, err := devices.Find([]string{name})
		if err == nil {
			err = p.Ensure(found, attach.XDPNone)
		}
		if err != nil { // the others do their work
			p.unmarked = append(p.unmarked, fmt.Sprintf("answers that leave by %s are not marked, and break their connections: %v", name, err))
		} else if err = p.Ensure(found, mode); err != nil {
			p.unmarked = append(p.unmarked, fmt.Sprintf("tunnels that come in by %s are not taken: %v", name, err))
		}
	}
	if len(names) == 0 {
		return nil // a device that is gone may come back
	}
	return p.Drop(append(egress, names...))
}

// note remembers how attaching ended.
func (p *programs) note(err error) {
	before := p.unattached
	if p.unattached = ""; err == nil {
		return
	}
	if p.unattached = err.Error(); p.unattached != before {
		p.Log.Error("devices not attached", "error", err)
	}
}

// obstacles are why packets and answers miss the programs; problems besides: why some may. none: no device takes packets out of tunnels.
func (p *programs) obstacles() (found, problems []string, none bool) {
	if p.unattached != "" {
		found = append(found, p.unattached)
	}
	down, all := p.Down()
	if all {
		return append(append(found, down...), p.Problems()...), nil, true
	}
	return append(found, p.Problems()...), down, false
}
