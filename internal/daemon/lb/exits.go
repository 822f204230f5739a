// The devices that next hops leave by: their drivers must accept redirected frames.
package lb

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

// exitRetry is the time between attempts to attach to a device: each may make the driver set up its queues again.
const exitRetry = 30 * time.Second

// exits are the devices that native programs redirect frames to. A device keeps the pass program when no next hop leaves by it any more,
// until the next start: drivers interrupt traffic to attach and detach.
type exits struct {
	hooks interface {
		OpenExit(device *net.Interface) error
		HasLink(ifindex int) (bool, error)
		Forget(ifindex int) error
	}
	log   *slog.Logger
	known map[int]*exit // by ifindex
	views atomic.Pointer[map[uint32]exitView]
}

// exitView is what others read of a device, from any goroutine.
type exitView struct {
	redirects bool   // clients' frames leave by it by redirects of native programs; XDP_TX counts where the driver treats both alike
	why       string // such frames are lost, empty: they are not, or that is not known
}

// view returns what is known of a device that next hops leave by.
func (e *exits) view(ifindex uint32) (v exitView) {
	if views := e.views.Load(); views != nil {
		v = (*views)[ifindex]
	}
	return v
}

type exit struct {
	why  string    // it drops redirected frames, empty: it accepts them, or the kernel does not say
	held bool      // the pass program is ours
	next time.Time // of the next attempt to attach
}

// look brings exits in line with the paths in use. running are the devices with the program.
func (e *exits) look(paths map[netip.Addr]plan.Path, running map[int]attach.XDPMode, now time.Time) {
	used := map[int]bool{} // by redirects from other devices
	for _, path := range paths {
		if ifindex := int(path.Ifindex); ifindex != 0 {
			used[ifindex] = redirectsTo(ifindex, running)
		}
	}
	for ifindex, have := range e.known {
		if _, err := net.InterfaceByIndex(ifindex); err != nil {
			delete(e.known, ifindex)
			if err := e.hooks.Forget(ifindex); err != nil {
				e.log.Error("pin of a device that is gone not removed", "error", err)
			}
		} else if !used[ifindex] {
			have.why = ""
		}
	}
	for ifindex, yes := range used {
		device, err := net.InterfaceByIndex(ifindex)
		if !yes || err != nil { // gone: its paths follow
			continue
		}
		have := e.known[ifindex]
		if have == nil {
			have = &exit{}
			if e.known == nil {
				e.known = map[int]*exit{}
			}
			e.known[ifindex] = have
		}
		before := have.why
		if have.open(e, device, running[ifindex], now); have.why != before && have.why != "" {
			e.log.Error("frames that leave by a device are lost", "interface", device.Name, "why", have.why)
		}
	}
	views := make(map[uint32]exitView, len(used))
	for ifindex, yes := range used {
		view := exitView{redirects: yes}
		if have := e.known[ifindex]; have != nil {
			view.why = have.why
		}
		if !yes && running[ifindex] == attach.XDPNative { // by XDP_TX
			target, err := netdev.ReadTarget(ifindex)
			takes, known := target.Takes()
			view.redirects = err == nil && takes && known
		}
		views[uint32(ifindex)] = view
	}
	e.views.Store(&views)
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

// open makes the device accept redirected frames, or says why it does not.
func (x *exit) open(e *exits, device *net.Interface, mode attach.XDPMode, now time.Time) {
	target, err := netdev.ReadTarget(device.Index)
	if err != nil {
		return // gone meanwhile
	}
	takes, known := target.Takes()
	if target.Veth { // a program at this end changes nothing
		if x.why = ""; known && !takes {
			x.why = fmt.Sprintf("servers are reached by %s, whose peer has no XDP program and drops redirected frames: in the peer's network namespace: ballast pass --interface %s",
				device.Name, cmp.Or(target.Peer.Name, "PEER"))
		}
		return
	}
	if mode == attach.XDPNative { // the program that frames come in by is there
		if x.why = ""; known && !takes {
			x.why = dropsFrames(device, errNoTransmit)
		}
		return
	}
	if takes {
		x.why = ""
		if x.held {
			return
		}
		if x.held, err = e.hooks.HasLink(device.Index); !x.held && err == nil {
			return // it needs no program, or has another's
		}
	} else if ours, err := e.hooks.HasLink(device.Index); now.Before(x.next) || !known && x.held && ours && err == nil {
		return
	}
	x.next = now.Add(exitRetry)
	if err = errors.New("the program runs there in generic mode"); mode != attach.XDPGeneric {
		err = e.hooks.OpenExit(device)
	}
	if err == nil {
		if !x.held {
			e.log.Info("the driver accepts redirected frames: the device has the pass program, or another native one", "interface", device.Name)
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

var errNoTransmit = errors.New("the driver does not transmit frames of XDP programs")

func dropsFrames(device *net.Interface, why error) string {
	return fmt.Sprintf("servers are reached by %s, which drops redirected frames: %s: use --xdp-mode generic, or reach servers by another device", device.Name, why)
}

// refuses is why a device drops redirected frames that leave by it, empty: it does not, or that is not known.
func (e *exits) refuses(ifindex uint32) string { return e.view(ifindex).why }

// split divides why devices drop what leaves by them: where new connections leave by one they are lost; else the checks have found its servers unhealthy, or nothing is sent there.
func (e *exits) split(leavesBy func(ifindex uint32) bool) (losing, avoided []string) {
	views := e.views.Load()
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
