// Package exits makes the devices that next hops leave by accept the frames that a daemon's XDP program sends, or says why they do not.
package exits

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/plan"
)

// retry is the time between attempts to attach to a device: each may make the driver set up its queues again.
const retry = 30 * time.Second

// Hooks attach the pass program to devices, and keep it there when the process ends.
type Hooks interface {
	OpenExit(device *net.Interface) error
	HasLink(ifindex int) (bool, error)
	Forget(ifindex int) error
}

// Devices are those that native programs send frames out of. A device keeps the pass program when no next hop leaves by it any more,
// until the next start: drivers interrupt traffic to attach and detach. Refuses, ByXDP and Split are safe for concurrent use.
type Devices struct {
	Hooks Hooks
	Log   *slog.Logger
	// Busy: the host sends packets of its own by these devices all the time. They wake the peer of a veth device that has GRO and no program:
	// frames that XDP_TX sends wait there for the next one.
	Busy bool

	known map[int]*exit // by ifindex
	views atomic.Pointer[map[uint32]view]
}

// view is what others read of a device.
type view struct {
	byXDP bool   // frames that leave by it take the same path through the driver as redirected ones
	why   string // such frames are lost, empty: they are not, or that is not known
}

type exit struct {
	why  string    // it drops the program's frames, empty: it accepts them, or the kernel does not say
	held bool      // the pass program is ours
	next time.Time // of the next attempt to attach
}

// use is how native programs send frames out of a device.
type use struct {
	redirects bool // those of other devices
	returns   bool // its own, by XDP_TX
}

// Follow brings the devices in line with the paths in use. running are the devices with the daemon's program.
func (d *Devices) Follow(paths map[netip.Addr]plan.Path, running map[int]attach.XDPMode, now time.Time) {
	used := map[int]use{}
	for _, path := range paths {
		if ifindex := int(path.Ifindex); ifindex != 0 {
			used[ifindex] = use{redirects: redirectsTo(ifindex, running), returns: running[ifindex] == attach.XDPNative}
		}
	}
	d.forget(used)
	views := make(map[uint32]view, len(used))
	for ifindex, by := range used {
		device, err := net.InterfaceByIndex(ifindex)
		if err != nil { // gone: its paths follow
			continue
		}
		if target, err := netdev.ReadTarget(ifindex); err == nil {
			views[uint32(ifindex)] = d.look(device, target, by, running[ifindex], now)
		}
	}
	d.views.Store(&views)
}

// forget lets go of devices that are gone.
func (d *Devices) forget(used map[int]use) {
	for ifindex, have := range d.known {
		if _, err := net.InterfaceByIndex(ifindex); err != nil {
			delete(d.known, ifindex)
			if err := d.Hooks.Forget(ifindex); err != nil {
				d.Log.Error("pin of a device that is gone not removed", "error", err)
			}
		} else if used[ifindex] == (use{}) {
			have.why = ""
		}
	}
}

// look finds out whether a device accepts the program's frames, and sees to it that it does.
func (d *Devices) look(device *net.Interface, target netdev.Target, by use, mode attach.XDPMode, now time.Time) view {
	if !by.redirects && !by.returns {
		return view{}
	}
	if !by.redirects && !target.Veth { // drivers transmit by XDP_TX what their own program returns
		takes, known := target.Takes()
		return view{byXDP: takes && known}
	}
	have := d.known[device.Index]
	if have == nil {
		have = &exit{}
		if d.known == nil {
			d.known = map[int]*exit{}
		}
		d.known[device.Index] = have
	}
	before := have.why
	if target.Veth {
		have.why = d.whyVeth(device, target, by)
	} else {
		have.open(d, device, target, mode, now)
	}
	if have.why != before && have.why != "" {
		d.Log.Error("frames that leave by a device are lost", "interface", device.Name, "why", have.why)
	}
	return view{byXDP: true, why: have.why}
}

// redirectsTo tells whether native programs of other devices redirect frames to this one. Generic programs redirect socket buffers, which every device accepts.
func redirectsTo(ifindex int, running map[int]attach.XDPMode) bool {
	for other, mode := range running {
		if other != ifindex && mode == attach.XDPNative {
			return true
		}
	}
	return false
}

// whyVeth says why a veth device drops frames: a program at this end changes nothing.
func (d *Devices) whyVeth(device *net.Interface, target netdev.Target, by use) string {
	takes, known := target.Takes()
	if by.returns && !d.Busy && target.Peer.Known && target.Peer.Program == 0 {
		takes, known = false, true
	}
	if takes || !known {
		return ""
	}
	return fmt.Sprintf("servers are reached by %s, whose peer has no XDP program and drops frames that a program sends: in the peer's network namespace: ballast pass --interface %s",
		device.Name, cmp.Or(target.Peer.Name, "PEER"))
}

// open makes a device accept redirected frames, or says why it does not.
func (x *exit) open(d *Devices, device *net.Interface, target netdev.Target, mode attach.XDPMode, now time.Time) {
	takes, known := target.Takes()
	if mode == attach.XDPNative { // the program that frames come in by is there
		if x.why = ""; known && !takes {
			x.why = dropsFrames(device, errNoTransmit)
		}
		return
	}
	var err error
	if takes {
		x.why = ""
		if x.held {
			return
		}
		if x.held, err = d.Hooks.HasLink(device.Index); !x.held && err == nil {
			return // it needs no program, or has another's
		}
	} else if ours, err := d.Hooks.HasLink(device.Index); !known && x.held && ours && err == nil {
		x.why = ""
		return
	} else if now.Before(x.next) {
		if x.why == "" && (known || !nativeProgram(device)) {
			x.why = dropsFrames(device, errDetached)
		}
		return
	}
	x.next = now.Add(retry)
	if err = errors.New("the program runs there in generic mode"); mode != attach.XDPGeneric {
		err = d.Hooks.OpenExit(device)
	}
	if err == nil {
		if !x.held {
			d.Log.Info("the driver accepts redirected frames: the device has the pass program, or another native one", "interface", device.Name)
		}
		x.held = true
		if target, gone := netdev.ReadTarget(device.Index); gone == nil {
			if takes, known = target.Takes(); known && !takes {
				err = errNoTransmit
			}
		}
	}
	if x.why = ""; err != nil {
		x.held = false
		x.why = dropsFrames(device, err)
	}
}

var (
	errNoTransmit = errors.New("the driver does not transmit frames of XDP programs")
	errDetached   = fmt.Errorf("the XDP program there is gone, and is attached again within %v", retry)
)

func nativeProgram(device *net.Interface) bool {
	_, mode, there := attach.XDPOn(device.Index)
	return there && mode == attach.XDPNative
}

func dropsFrames(device *net.Interface, why error) string {
	return fmt.Sprintf("servers are reached by %s, which drops redirected frames: %s: use --xdp-mode generic, or reach servers by another device", device.Name, why)
}

func (d *Devices) view(ifindex uint32) (v view) {
	if views := d.views.Load(); views != nil {
		v = (*views)[ifindex]
	}
	return v
}

// Refuses is why a device drops the program's frames that leave by it, empty: it does not, or that is not known.
func (d *Devices) Refuses(ifindex uint32) string { return d.view(ifindex).why }

// ByXDP tells whether a redirect to a device shows what becomes of the program's frames that leave by it.
func (d *Devices) ByXDP(ifindex uint32) bool { return d.view(ifindex).byXDP }

// Split divides why devices drop what leaves by them: where packets leave by one they are lost; else nothing is sent there.
func (d *Devices) Split(leavesBy func(ifindex uint32) bool) (losing, avoided []string) {
	views := d.views.Load()
	if views == nil {
		return nil, nil
	}
	for _, ifindex := range slices.Sorted(maps.Keys(*views)) {
		switch why := (*views)[ifindex].why; {
		case why == "":
		case leavesBy(ifindex):
			losing = append(losing, why)
		default:
			avoided = append(avoided, why)
		}
	}
	return losing, avoided
}
