// Package portranges keeps destinations that are ranges of ports where packets find them (bpf/wire/port_ranges.h).
package portranges

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/plan"
)

// Flag is PORT_RANGES: in the value of a key, it says that the rest is the index of a list.
const Flag = 0x8000

// Most is PORT_RANGES_MOST: ranges of one address and protocol.
const Most = 32

// port is struct port_range.
type port struct {
	First, Last uint16
	Value, Fast uint32
}

// unused is one that no port is in.
var unused = port{First: 1}

// Lists are the lists of one program. They are not safe for concurrent use.
type Lists struct {
	lists *ebpf.Map
	used  *ebpf.Variable
	point func(key plan.PortKey, value uint32) error // makes a key name a list, or takes it away (0)
	wait  func() error                               // until no packet reads a list that has no key any more
	fast  func(value uint32) uint32                  // nil: there are no such words

	held          map[plan.PortKey]held
	free, resting []uint32
}

type held struct {
	index uint32
	ports []port // the last one that was set first, but that of all ports is the last
}

// New returns the lists that keys name already. The functions are described at Lists.
func New(lists *ebpf.Map, used *ebpf.Variable, keys map[plan.PortKey]uint32, point func(plan.PortKey, uint32) error, wait func() error, fast func(uint32) uint32) (*Lists, error) {
	l := &Lists{lists: lists, used: used, point: point, wait: wait, fast: fast, held: map[plan.PortKey]held{}}
	taken := map[uint32]bool{}
	for key, value := range keys {
		if value&Flag == 0 {
			continue
		}
		var list [Most]port
		index := value &^ Flag
		if err := lists.Lookup(index, &list); err != nil {
			return nil, fmt.Errorf("read list %d of ranges of ports: %w", index, err)
		}
		h := held{index: index}
		for _, p := range list {
			if p != unused {
				h.ports = append(h.ports, p)
			}
		}
		l.held[key], taken[index] = h, true
	}
	for index := range lists.MaxEntries() {
		if !taken[index] {
			l.resting = append(l.resting, index) // an earlier process may have given it up just now
		}
	}
	return l, l.switchOn()
}

// switchOn makes packets look into lists, if there are any.
func (l *Lists) switchOn() error {
	on := uint32(0)
	if len(l.held) > 0 {
		on = 1
	}
	if err := l.used.Set(on); err != nil {
		return fmt.Errorf("say whether there are ranges of ports: %w", err)
	}
	return nil
}

// All calls each with every range and its value.
func (l *Lists) All(each func(key plan.VIPKey, value uint32)) {
	for key, h := range l.held {
		for _, p := range h.ports {
			key.Port = [2]byte{byte(p.First >> 8), byte(p.First)}
			each(plan.VIPKey{PortKey: key, Last: p.Last}, p.Value)
		}
	}
}

// Set gives a range a value. Where it has ports of others, they are its own from then on, unless it is that of all ports. An error leaves what was.
func (l *Lists) Set(key plan.VIPKey, value uint32) error {
	ports := slices.DeleteFunc(l.portsOf(key), is(key))
	ports = slices.Insert(ports, 0, port{First: key.Ports().First, Last: key.Last, Value: value})
	if len(ports) > Most {
		return fmt.Errorf("no room for ports %s of %s: %d ranges there, with those that a change replaces, at most %d fit", key.Ports(), key.VIP(), len(ports), Most)
	}
	if all := slices.IndexFunc(ports, func(p port) bool { return p.First == 0 }); all >= 0 {
		ports = append(slices.Delete(slices.Clone(ports), all, all+1), ports[all])
	}
	return l.publish(key.PortKey, ports)
}

// Delete takes a range away, if it is there.
func (l *Lists) Delete(key plan.VIPKey) error {
	before := l.portsOf(key)
	ports := slices.DeleteFunc(before, is(key))
	if len(ports) == len(before) {
		return nil
	}
	return l.publish(key.PortKey, ports)
}

// Refresh makes the words of a value anew, and reports whether any has changed.
func (l *Lists) Refresh(value uint32) (changed bool, err error) {
	fast := l.fast(value)
	stale := func(p port) bool { return p.Value == value && p.Fast != fast }
	for key, h := range l.held {
		if !slices.ContainsFunc(h.ports, stale) {
			continue
		}
		if err := l.publish(key, slices.Clone(h.ports)); err != nil {
			return true, err
		}
		changed = true
	}
	return changed, nil
}

func is(key plan.VIPKey) func(port) bool {
	return func(p port) bool { return p.First == key.Ports().First && p.Last == key.Last }
}

// portsOf returns a copy of what is published beside a range.
func (l *Lists) portsOf(key plan.VIPKey) []port { return slices.Clone(l.held[key.List()].ports) }

// publish writes a list to a place of its own, then lets packets find it.
func (l *Lists) publish(of plan.PortKey, ports []port) error {
	key := of.List()
	before, known := l.held[key]
	if len(ports) == 0 {
		if err := l.point(key, 0); err != nil {
			return err
		}
		delete(l.held, key)
		l.resting = append(l.resting, before.index)
		return l.switchOn()
	}
	if len(l.free) == 0 {
		if len(l.resting) == 0 {
			return fmt.Errorf("no room for ranges of ports at more than %d addresses and protocols", l.lists.MaxEntries())
		}
		if err := l.wait(); err != nil {
			return err
		}
		l.free, l.resting = l.resting, nil
	}
	var list [Most]port
	for i := range list {
		list[i] = unused
		if i < len(ports) {
			if l.fast != nil {
				ports[i].Fast = l.fast(ports[i].Value)
			}
			list[i] = ports[i]
		}
	}
	index := l.free[0]
	if err := l.lists.Put(index, list); err != nil {
		return fmt.Errorf("write list %d of ranges of ports: %w", index, err)
	}
	l.free = l.free[1:]
	if err := l.point(key, Flag|index); err != nil {
		l.resting = append(l.resting, index) // packets may have found it
		return err
	}
	l.held[key] = held{index, ports}
	if known {
		l.resting = append(l.resting, before.index)
	}
	return l.switchOn()
}
