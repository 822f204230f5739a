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

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

//go:generate go tool bpf2go -target bpfel -type segment_key -type segment_vip segment ../../../bpf/segment.bpf.c

// layout names the shape of the pinned map.
const layout = "segment-v1"

// Max is how many VIPs there is room for.
const Max = 4096

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

// Set has a VIP answered, with this address of the device; not owned: another load balancer answers for it, and this host must not.
func (a *Answers) Set(vip netip.Addr, mac net.HardwareAddr, owned bool) error {
	key := keyOf(vip)
	var value segmentSegmentVip
	if err := a.objects.SegmentVips.Lookup(key, &value); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("look up what is answered for %s: %w", vip, err)
	}
	copy(value.Mac[:], mac)
	value.Owned = 0
	if owned {
		value.Owned = 1
	}
	if err := a.objects.SegmentVips.Put(key, value); err != nil {
		return fmt.Errorf("answer for %s: %w", vip, err)
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

// Known are the VIPs that there is an answer for: whether it is given, and how often it was.
func (a *Answers) Known() (map[netip.Addr]Answer, error) {
	known := map[netip.Addr]Answer{}
	var key segmentSegmentKey
	var value segmentSegmentVip
	all := a.objects.SegmentVips.Iterate()
	for all.Next(&key, &value) {
		known[addressOf(&key)] = Answer{value.Owned != 0, value.Mac, value.Answered}
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("read what is answered: %w", err)
	}
	return known, nil
}

// Answer is what becomes of requests for a VIP.
type Answer struct {
	Owned bool
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
