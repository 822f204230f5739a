// Package devices keeps a daemon's programs on its devices, whoever detaches them.
package devices

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// Hooks are a role's programs, for the devices that they run on.
type Hooks interface {
	Attach(device *net.Interface, mode attach.XDPMode) (attach.XDPMode, error)
	Runs(ifindex int) error
	Ahead(ifindex int) ([]string, error)
	Forget(ifindex int) error
	Repin() (missed bool, err error)
}

// Attachments keep a daemon's programs on its devices: also where somebody detaches them, or a device is made anew. Who takes the place
// for a program of his own is not fought: we ask for it again, less and less often, and say meanwhile who has it.
type Attachments struct {
	Hooks Hooks
	Mode  attach.XDPMode
	Log   *slog.Logger

	devices map[string]*attached
	pins    string // why they are not all there, empty: they are
}

// attached is a device as it was when the programs were attached.
type attached struct {
	net.Interface
	asked attach.XDPMode
	mode  attach.XDPMode // that it got
	why   string         // it has no program, empty: it has
	ahead []string       // programs of others that see its packets before ours
	since time.Time
	next  time.Time     // of the next attempt, when it has none
	wait  time.Duration // before that
}

// How often it is looked whether the programs are still there, and how long one that is lost again and again has to wait. One that stayed for
// calm begins anew.
const (
	Period  = time.Second
	maxWait = 30 * time.Second
	calm    = 5 * time.Minute
)

// Ensure attaches to the devices that have no program of ours yet, or at tc alone what is to have XDP too. None loses its XDP program.
func (a *Attachments) Ensure(devices []*net.Interface, mode attach.XDPMode) error {
	for _, device := range devices {
		have := a.devices[device.Name]
		if have != nil && (have.asked == mode || mode == attach.XDPNone) {
			continue
		}
		if have == nil {
			have = &attached{}
		}
		before := have.asked
		have.asked = mode
		if err := a.attach(have, device); err != nil {
			have.asked = before
			return err
		}
		if a.devices == nil {
			a.devices = map[string]*attached{}
		}
		a.devices[device.Name] = have
	}
	return nil
}

// Drop forgets devices that are not wanted and are gone.
func (a *Attachments) Drop(wanted []string) error {
	for name, have := range a.devices {
		if slices.Contains(wanted, name) {
			continue
		}
		if _, err := net.InterfaceByName(name); err == nil {
			continue
		}
		delete(a.devices, name)
		if err := a.Hooks.Forget(have.Index); err != nil {
			return err
		}
	}
	return nil
}

func (a *Attachments) attach(have *attached, device *net.Interface) error {
	mode, err := a.Hooks.Attach(device, have.asked)
	if err != nil {
		return err
	}
	if mode == attach.XDPGeneric && a.Mode != mode {
		a.Log.Warn("the driver takes no native XDP program: generic mode costs more CPU for each packet; `ballast doctor` has the remedy",
			"interface", device.Name)
	}
	before := have.Index
	have.Interface, have.mode, have.why, have.since = *device, mode, "", time.Now()
	a.Log.Info("attached", "interface", device.Name, "address", device.HardwareAddr.String(), "mode", mode)
	if before != 0 && before != device.Index {
		return a.Hooks.Forget(before)
	}
	return nil
}

// Look finds what is no longer attached or pinned, and mends it.
func (a *Attachments) Look(now time.Time) {
	missed, err := a.Hooks.Repin()
	before := a.pins
	a.pins = ""
	switch {
	case err != nil:
		if a.pins = err.Error(); a.pins != before {
			a.Log.Error("pins are gone: the data path would end with this process", "error", err)
		}
	case missed:
		a.Log.Warn("pins were gone, and are made again: they were removed, or their file system was unmounted")
	}
	for _, have := range a.devices {
		a.reattach(have, now)
	}
}

// reattach attaches again where the program was detached or the device was made anew or has another MAC address.
func (a *Attachments) reattach(have *attached, now time.Time) {
	device, err := net.InterfaceByName(have.Name)
	if err != nil {
		a.lose(have, fmt.Sprintf("interface %s is gone", have.Name), now)
		have.next, have.wait = now, 0 // nobody has taken it from us
		return
	}
	if isUp, wasUp := up(device), up(&have.Interface); isUp != wasUp {
		a.Log.Warn("interface has changed", "interface", have.Name, "up", isUp)
	}
	have.Flags = device.Flags
	if have.why == "" && device.Index == have.Index {
		if missing := a.Hooks.Runs(have.Index); missing != nil {
			a.lose(have, missing.Error(), now)
		} else if bytes.Equal(device.HardwareAddr, have.HardwareAddr) {
			a.lookAhead(have)
			return
		}
	}
	if now.Before(have.next) {
		return
	}
	if err := a.attach(have, device); err != nil {
		a.lose(have, err.Error(), now)
	}
}

// lookAhead finds programs of others that have come before ours. They are not fought: who put them there may do so again.
func (a *Attachments) lookAhead(have *attached) {
	before := have.ahead
	var err error
	if have.ahead, err = a.Hooks.Ahead(have.Index); err != nil {
		have.ahead = []string{err.Error()}
	}
	for _, line := range have.ahead {
		if !slices.Contains(before, line) {
			a.Log.Warn(line)
		}
	}
}

// lose takes note that a device has no program, and when to try again: at once, and from then on after longer and longer.
func (a *Attachments) lose(have *attached, why string, now time.Time) {
	if have.why != why {
		a.Log.Error("not attached", "interface", have.Name, "why", why)
	}
	if have.why == "" && now.Sub(have.since) > calm {
		have.wait = 0
	}
	have.why, have.next = why, now.Add(have.wait)
	have.wait = min(max(2*have.wait, Period), maxWait)
}

// Problems say which devices have no program, and why.
func (a *Attachments) Problems() (problems []string) {
	if a.pins != "" {
		problems = append(problems, a.pins)
	}
	for _, name := range slices.Sorted(maps.Keys(a.devices)) {
		if why := a.devices[name].why; why != "" {
			problems = append(problems, why)
		}
	}
	return problems
}

// Ahead are programs of others that see packets of devices before ours.
func (a *Attachments) Ahead() (problems []string) {
	for _, name := range slices.Sorted(maps.Keys(a.devices)) {
		if have := a.devices[name]; have.why == "" {
			problems = append(problems, have.ahead...)
		}
	}
	return problems
}

// up: with a carrier, too.
func up(device *net.Interface) bool {
	const both = net.FlagUp | net.FlagRunning
	return device.Flags&both == both
}

// Down are the devices that no packet for the programs can come in by, and whether there is no other.
func (a *Attachments) Down() (problems []string, all bool) {
	all = true
	for _, name := range slices.Sorted(maps.Keys(a.devices)) {
		switch have := a.devices[name]; {
		case have.asked == attach.XDPNone || have.why != "":
		case up(&have.Interface):
			all = false
		default:
			problems = append(problems, fmt.Sprintf("interface %s is down or has no carrier: no packet comes in by it", name))
		}
	}
	return problems, all
}

// Any reports whether there are devices to keep the programs on.
func (a *Attachments) Any() bool { return len(a.devices) > 0 }

// notAttached is the mode of a device that has lost the program.
const notAttached = "not attached"

// Modes tells how each device runs the program, by name.
func (a *Attachments) Modes() map[string]string {
	modes := make(map[string]string, len(a.devices))
	for name, device := range a.devices {
		if modes[name] = string(device.mode); device.why != "" {
			modes[name] = notAttached
		}
	}
	return modes
}

// On tells whether a device has the programs, in whatever mode.
func (a *Attachments) On(device *net.Interface) bool {
	have, there := a.devices[device.Name]
	return there && have.why == "" && have.Index == device.Index
}

// Running are the indexes of the devices that run the program, by its mode.
func (a *Attachments) Running() map[int]attach.XDPMode {
	running := make(map[int]attach.XDPMode, len(a.devices))
	for _, device := range a.devices {
		if device.why == "" && device.mode != attach.XDPNone {
			running[device.Index] = device.mode
		}
	}
	return running
}

var interfaceAttached = prometheus.NewDesc("ballast_interface_attached", "1 while the program is on the interface; 0: it should be, and is not.", []string{"interface"}, nil)

// Collect tells Prometheus which devices have the program, by their modes, and which wait for it.
func Collect(out chan<- prometheus.Metric, modes map[string]string, waiting []*net.Interface) {
	export := func(device string, attached float64) {
		out <- prometheus.MustNewConstMetric(interfaceAttached, prometheus.GaugeValue, attached, device)
	}
	for device, mode := range modes {
		export(device, listen.Bool(mode != notAttached))
	}
	for _, device := range waiting {
		if modes[device.Name] == "" {
			export(device.Name, 0)
		}
	}
}

// Implementation constants. The kernel frees links some time after their last pin has gone: after a grace period, by a worker, and
// both take long on a busy machine.
const (
	BusyPatience = 10 * time.Second
	busyInterval = 50 * time.Millisecond
)

// WhileBusy repeats attach for as long as another program is on the device, at most for patience.
func WhileBusy(log *slog.Logger, patience time.Duration, attach func() error) error {
	for end, said := time.Now().Add(patience), false; ; time.Sleep(busyInterval) {
		err := attach()
		if !errors.Is(err, unix.EBUSY) || !time.Now().Before(end) {
			return err
		}
		if !said {
			log.Warn("another program is on the device: waiting for it to go", "for at most", patience, "error", err)
			said = true
		}
	}
}

// Find finds devices by name; without names, those of the default routes.
func Find(names []string) (devices []*net.Interface, err error) {
	if len(names) == 0 {
		if names, err = netdev.DefaultInterfaces(); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		device, err := net.InterfaceByName(name)
		if err != nil {
			return nil, netdev.NotFound(name, err)
		}
		devices = append(devices, device)
	}
	return devices, nil
}
