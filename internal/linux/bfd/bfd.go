// Package bfd makes a host answer its neighbours' BFD packets (bpf/bfd.bpf.c), also while no process of ours runs.
package bfd

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

//go:generate go tool bpf2go -target bpfel -type bfd_key -type bfd_session bfd ../../../bpf/bfd.bpf.c

// layout names the shape of the pinned map, and with it what the discriminators are of.
const layout = "bfd-v1"

// Session is with one neighbour.
type Session struct {
	Neighbor   netip.Addr
	Interval   time.Duration
	Multiplier uint8
}

// State is how a session is.
type State struct {
	Up        bool          // as this host sees it: the neighbour was heard, and has heard us
	Heard     time.Duration // since the last packet; 0 and not Up: never
	Detection time.Duration // the neighbour holds this host for dead after so long
	Received  uint64
	Refused   uint64 // packets that are of its address, and are not as they must be
}

// Reflector answers.
type Reflector struct {
	objects bfdObjects
	pins    pin.Instance
	devices []int // that it is attached to
	looked  bool  // at what an earlier process has left
}

// dirOf is apart from the load balancer's own: its links are not those of devices that packets come in by.
func dirOf(instance string) string { return filepath.Join(instance, "bfd") }

// Open loads the program, and takes over what is pinned in an instance's directory.
func Open(instance string) (*Reflector, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the limit on locked memory: %w", err)
	}
	spec, err := loadBfd()
	if err != nil {
		return nil, fmt.Errorf("read the program that answers BFD: %w", err)
	}
	r := &Reflector{pins: pin.Instance{Dir: dirOf(instance), Layout: layout}}
	options := ebpf.CollectionOptions{}
	if options.Maps.PinPath, err = r.pins.Maps(); err != nil {
		return nil, err
	}
	for name, m := range spec.Maps {
		if !pin.IsSection(name) {
			m.Pinning = ebpf.PinByName
		}
	}
	if err := spec.LoadAndAssign(&r.objects, &options); err != nil {
		return nil, fmt.Errorf("load the program that answers BFD: %w", err)
	}
	return r, nil
}

// Close ends nothing: program and map are pinned.
func (r *Reflector) Close() error { return r.objects.Close() }

// Follow answers these neighbours, by these devices, and nobody else; functions only as long as Answer says. Sessions that are known keep their
// discriminators.
func (r *Reflector) Follow(routers, functions []Session, devices []int) error {
	if err := errors.Join(follow(r.objects.BfdSessions, routers), follow(r.objects.BfdFunctions, functions)); err != nil {
		return err
	}
	return r.attach(devices)
}

// Answer has functions answered for so long from now on, also without a process; 0: no more.
func (r *Reflector) Answer(long time.Duration) error {
	var until uint64
	if long > 0 {
		until = uint64(monotonic() + long)
	}
	if err := r.objects.BfdUntil.Put(uint32(0), until); err != nil {
		return fmt.Errorf("answer BFD of network functions: %w", err)
	}
	return nil
}

func monotonic() time.Duration {
	var clock unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock)
	return time.Duration(clock.Nano())
}

// follow makes a map have these sessions. Those that end make room first.
func follow(known *ebpf.Map, sessions []Session) error {
	wanted := map[bfdBfdKey]bool{}
	for _, s := range sessions {
		wanted[keyOf(s.Neighbor)] = true
	}
	if err := forget(known, wanted); err != nil {
		return err
	}
	for _, s := range sessions {
		key := keyOf(s.Neighbor)
		var value bfdBfdSession
		err := known.Lookup(key, &value)
		if err == nil && value.IntervalUs == uint32(s.Interval.Microseconds()) && value.Multiplier == uint32(s.Multiplier) {
			continue
		}
		if err != nil {
			var random [4]byte
			rand.Read(random[:])
			value = bfdBfdSession{Discriminator: binary.NativeEndian.Uint32(random[:]) | 1, State: 1}
		}
		value.IntervalUs, value.Multiplier = uint32(s.Interval.Microseconds()), uint32(s.Multiplier)
		if err := known.Put(key, value); err != nil {
			return fmt.Errorf("answer BFD of %s: %w", s.Neighbor, err)
		}
	}
	return nil
}

// forget ends the sessions that are not wanted.
func forget(known *ebpf.Map, wanted map[bfdBfdKey]bool) error {
	var stale []bfdBfdKey
	var key bfdBfdKey
	var value bfdBfdSession
	for all := known.Iterate(); all.Next(&key, &value); {
		if !wanted[key] {
			stale = append(stale, key)
		}
	}
	for _, key := range stale {
		if err := known.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("answer BFD of a neighbour no longer: %w", err)
		}
	}
	return nil
}

func (r *Reflector) attach(devices []int) error {
	for _, ifindex := range r.devices {
		if !slices.Contains(devices, ifindex) {
			if err := r.at(ifindex).Undo(); err != nil {
				return fmt.Errorf("answer BFD no longer: %w", err)
			}
		}
	}
	r.devices = nil
	for _, ifindex := range devices {
		on := r.at(ifindex)
		if on.Runs() != nil {
			if err := on.Attach(); err != nil {
				return fmt.Errorf("answer BFD: %w", err)
			}
		}
		r.devices = append(r.devices, ifindex)
		r.pins.Ask(attach.Ingress.Name, ifindex)
	}
	if r.looked {
		return nil
	}
	r.looked = true
	return attach.DropOthers(&r.pins)
}

func (r *Reflector) at(ifindex int) *attach.TC {
	return &attach.TC{Program: r.objects.BfdIngress, Hook: attach.Ingress, Ifindex: ifindex, Dir: r.pins.Dir, Pins: &r.pins}
}

// States tells how the sessions with routers are, by neighbour.
func (r *Reflector) States(neighbors []netip.Addr) map[netip.Addr]State {
	now := monotonic()
	states := map[netip.Addr]State{}
	for _, neighbor := range neighbors {
		var value bfdBfdSession
		if r.objects.BfdSessions.Lookup(keyOf(neighbor), &value) != nil {
			continue
		}
		s := State{Received: value.Received, Refused: value.Refused, Detection: time.Duration(value.DetectionUs) * time.Microsecond}
		if value.HeardNs > 0 {
			s.Heard = now - time.Duration(value.HeardNs)
			s.Up = value.State == 3 && s.Heard < s.Detection
		}
		states[neighbor] = s
	}
	return states
}

// Remove ends what an instance has pinned, if anything: neighbours notice.
func Remove(instance string) error {
	if _, err := os.Stat(dirOf(instance)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return attach.Detach(dirOf(instance))
}

func keyOf(neighbor netip.Addr) (key bfdBfdKey) {
	bytes := neighbor.AsSlice()
	for i := range len(bytes) / 4 {
		key.Neighbor[i] = binary.NativeEndian.Uint32(bytes[4*i:])
	}
	return key
}

// Object is the compiled BPF object (ELF) that is loaded.
func Object() []byte { return _BfdBytes }
