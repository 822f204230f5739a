// The devices that next hops leave by and that the program is not attached to: their drivers must accept redirected frames.
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
}

type exit struct {
	why  string    // it drops redirected frames, empty: it accepts them, or the kernel does not say
	held bool      // the pass program is ours
	next time.Time // of the next attempt to attach
}

// look brings exits in line with the paths in use. running are the devices with the program.
func (e *exits) look(paths map[netip.Addr]plan.Path, running map[int]attach.XDPMode, now time.Time) {
	native := slices.Contains(slices.Collect(maps.Values(running)), attach.XDPNative)
	used := map[int]bool{}
	for _, path := range paths {
		ifindex := int(path.Ifindex)
		// Generic programs redirect socket buffers, which every device accepts.
		used[ifindex] = native && running[ifindex] != attach.XDPNative
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
				err = errors.New("the driver does not transmit frames of XDP programs")
			}
		}
	}
	if x.why = ""; err != nil {
		x.held = false
		x.why = fmt.Sprintf("servers are reached by %s, which drops redirected frames: %s: use --xdp-mode generic, or reach servers by another device", device.Name, err)
	}
}

func (e *exits) problems() (problems []string) {
	for _, ifindex := range slices.Sorted(maps.Keys(e.known)) {
		if why := e.known[ifindex].why; why != "" {
			problems = append(problems, why)
		}
	}
	return problems
}
