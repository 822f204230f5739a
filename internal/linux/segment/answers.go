// Package segment makes a host answer ARP and Neighbor Discovery for VIPs on one of its devices (bpf/segment.bpf.c), also while no process of ours runs,
// and speaks to the other hosts there.
package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

//go:generate go tool bpf2go -target bpfel -type segment_key -type segment_vip -type segment_mac segment ../../../bpf/segment.bpf.c

// layout names the shape of the pinned maps.
const layout = "segment-v1"

// Max is how many VIPs there is room for.
const Max = 4096

// State is who answers for a VIP.
type State uint8

// States, as bpf/segment/vips.h has them.
const (
	Other State = iota // another load balancer: this host must not
	Owned              // this host
	Held               // this host, until another load balancer takes it, whose probes get no answer
)

// Answers are what a host answers. Its methods are for one caller at a time.
type Answers struct {
	objects  segmentObjects
	pins     pin.Instance
	attached int // to the device of this index; 0: to none by this process
}

// dirOf is apart from the load balancer's own: its links are not those of devices that packets come in by.
func dirOf(instance string) string { return filepath.Join(instance, "segment") }

// OpenAnswers loads the program, and takes over what is pinned in an instance's directory.
func OpenAnswers(instance string) (*Answers, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the limit on locked memory: %w", err)
	}
	spec, err := loadSegment()
	if err != nil {
		return nil, fmt.Errorf("read the program that answers ARP: %w", err)
	}
	a := &Answers{pins: pin.Instance{Dir: dirOf(instance), Layout: layout}}
	options := ebpf.CollectionOptions{}
	if options.Maps.PinPath, err = a.pins.Maps(); err != nil {
		return nil, err
	}
	for name, m := range spec.Maps {
		if !pin.IsSection(name) {
			m.Pinning = ebpf.PinByName
		}
	}
	if err := spec.LoadAndAssign(&a.objects, &options); err != nil {
		return nil, fmt.Errorf("load the program that answers ARP: %w", err)
	}
	return a, nil
}

// Close ends nothing: program and map are pinned.
func (a *Answers) Close() error { return errors.Join(a.pins.Release(), a.objects.Close()) }

func (a *Answers) at(ifindex int) *attach.TC {
	return &attach.TC{Program: a.objects.SegmentIngress, Hook: attach.Ingress, Ifindex: ifindex, Dir: a.pins.Dir, Pins: &a.pins}
}

// Attach has requests answered that come in by a device. A program that somebody else has detached is attached again.
func (a *Answers) Attach(ifindex int) error {
	on := a.at(ifindex)
	if on.Runs() != nil {
		if err := on.Attach(); err != nil {
			return fmt.Errorf("answer ARP: %w", err)
		}
	}
	return nil
}

// Alone has requests answered that come in by this device, and by no other.
func (a *Answers) Alone(ifindex int) error {
	if a.attached == ifindex {
		return nil
	}
	if a.attached != 0 {
		if err := a.at(a.attached).Undo(); err != nil {
			return fmt.Errorf("answer ARP of another device no longer: %w", err)
		}
	}
	a.pins.Ask(attach.Ingress.Name, ifindex)
	if err := attach.DropOthers(&a.pins); err != nil {
		return fmt.Errorf("answer ARP of another device no longer: %w", err)
	}
	a.attached = ifindex
	return nil
}

// Set has a VIP answered as state says, with this address of the device.
func (a *Answers) Set(vip netip.Addr, mac net.HardwareAddr, state State) error {
	key := keyOf(vip)
	var value segmentSegmentVip
	if err := a.objects.SegmentVips.Lookup(key, &value); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("look up what is answered for %s: %w", vip, err)
	}
	copy(value.Mac[:], mac)
	value.State = uint8(state)
	if err := a.objects.SegmentVips.Put(key, value); err != nil {
		return fmt.Errorf("answer for %s: %w", vip, err)
	}
	return nil
}

// Uptime is the clock of Until: since the start of the host, also while that is suspended.
func Uptime() time.Duration {
	var clock unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &clock)
	return time.Duration(clock.Nano())
}

// SetUntil has what is owned answered like what is held, from then on.
func (a *Answers) SetUntil(uptime time.Duration) error {
	if err := a.objects.SegmentUntil.Put(uint32(0), uint64(uptime)); err != nil {
		return fmt.Errorf("answer for VIPs without a daemon: %w", err)
	}
	return nil
}

// Until is what SetUntil was told last, also by an earlier process; 0: nothing.
func (a *Answers) Until() (uptime time.Duration, err error) {
	var until uint64
	if err := a.objects.SegmentUntil.Lookup(uint32(0), &until); err != nil {
		return 0, fmt.Errorf("read how long VIPs are answered for: %w", err)
	}
	return time.Duration(until), nil
}

// SetPeers says which hosts are load balancers, by their addresses on the segment.
func (a *Answers) SetPeers(macs map[[6]byte]bool) error {
	var key segmentSegmentMac
	var value uint8
	var gone []segmentSegmentMac
	all := a.objects.SegmentPeers.Iterate()
	for all.Next(&key, &value) {
		if !macs[key.Mac] {
			gone = append(gone, key)
		}
	}
	err := all.Err()
	for _, key := range gone {
		err = errors.Join(err, a.objects.SegmentPeers.Delete(key))
	}
	for mac := range macs {
		err = errors.Join(err, a.objects.SegmentPeers.Put(segmentSegmentMac{Mac: mac}, uint8(1)))
	}
	if err != nil {
		return fmt.Errorf("note who may take VIPs: %w", err)
	}
	return nil
}

// Forget leaves requests for a VIP to the host's stack.
func (a *Answers) Forget(vip netip.Addr) error {
	if err := a.objects.SegmentVips.Delete(keyOf(vip)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("answer for %s no longer: %w", vip, err)
	}
	return nil
}

// Known are the VIPs that there is an answer for: whether it is given, and how often it was. The program ends that one is held.
func (a *Answers) Known() (map[netip.Addr]Answer, error) {
	known := map[netip.Addr]Answer{}
	var key segmentSegmentKey
	var value segmentSegmentVip
	all := a.objects.SegmentVips.Iterate()
	for all.Next(&key, &value) {
		known[addressOf(&key)] = Answer{State(value.State), value.Mac, value.Answered}
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("read what is answered: %w", err)
	}
	return known, nil
}

// Answer is what becomes of requests for a VIP.
type Answer struct {
	State State
	MAC   [6]byte // that is answered
	Given uint64
}

// Remove ends what an instance has pinned, and reports whether there was anything: no request is answered any more.
func Remove(instance string) (found bool, err error) {
	if _, err := os.Stat(dirOf(instance)); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return true, attach.Detach(dirOf(instance))
}

func keyOf(vip netip.Addr) (key segmentSegmentKey) {
	bytes := vip.AsSlice()
	for i := range len(bytes) / 4 {
		key.Address[i] = binary.NativeEndian.Uint32(bytes[4*i:])
	}
	if vip.Is6() {
		key.Ipv6 = 1
	}
	return key
}

func addressOf(key *segmentSegmentKey) netip.Addr {
	var bytes [16]byte
	for i, word := range key.Address {
		binary.NativeEndian.PutUint32(bytes[4*i:], word)
	}
	if key.Ipv6 == 0 {
		return netip.AddrFrom4([4]byte(bytes[:4]))
	}
	return netip.AddrFrom16(bytes)
}

// Object is the compiled BPF object (ELF) that is loaded.
func Object() []byte { return _SegmentBytes }
