// Package announce decides which VIPs a load balancer announces to routers: conditions and time in, what to announce and to withdraw out.
package announce

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Wanted is what a load balancer would announce. The condition of each VIP is empty where it can be carried, else why not.
type Wanted struct {
	VIPs  map[netip.Prefix]string
	Stop  string        // why nothing is announced, whatever the conditions; empty: they count
	Delay time.Duration // a VIP that was withdrawn must be good for so long before it is announced again
}

// Action is what a router is to be told.
type Action struct {
	VIP      netip.Prefix
	Announce bool // false: withdraw
	Why      string
}

// Status is how a VIP stands.
type Status struct {
	VIP       netip.Prefix
	Announced bool
	Since     time.Time
	Why       string // it is announced, or is not
}

// vip is one that is known.
type vip struct {
	announced bool
	withdrawn bool // before: so it has to wait
	since     time.Time
	good      time.Time // since when it can be carried; zero: it cannot
	why       string
}

// Machine remembers what was announced. The zero value has announced nothing.
type Machine struct {
	vips   map[netip.Prefix]*vip
	graced time.Time // until then what was announced before a restart stays, whatever its condition
}

// Reasons of announcements.
const (
	Able    = "it can be carried"
	Kept    = "it was announced before the restart, and what it needs is still looked for"
	Waiting = "it can be carried again, and has to wait: announce_delay"
	Gone    = "no service has it"
)

// Resume begins with what an earlier process has announced. Routers have kept these routes: what is needed to carry them is known again soon,
// for which they have until then.
func (m *Machine) Resume(announced []netip.Prefix, now, until time.Time) (actions []Action) {
	m.vips, m.graced = map[netip.Prefix]*vip{}, until
	for _, prefix := range announced {
		m.vips[prefix] = &vip{announced: true, since: now, why: Kept}
		actions = append(actions, Action{prefix, true, Kept})
	}
	return actions
}

// Step takes what is wanted now. next is when it has to be looked again though nothing changes; zero: never.
func (m *Machine) Step(now time.Time, wanted *Wanted) (actions []Action, next time.Time) {
	if m.vips == nil {
		m.vips = map[netip.Prefix]*vip{}
	}
	for prefix := range wanted.VIPs {
		if m.vips[prefix] == nil {
			m.vips[prefix] = &vip{since: now}
		}
	}
	for _, prefix := range slices.SortedFunc(maps.Keys(m.vips), comparePrefixes) {
		v := m.vips[prefix]
		why, there := wanted.VIPs[prefix]
		if !there {
			why = Gone
		}
		before := v.announced
		again := v.step(now, cmp.Or(wanted.Stop, why), wanted, m.graced, wanted.Stop == "" && there)
		if v.announced != before {
			v.since = now
			actions = append(actions, Action{prefix, v.announced, v.why})
		}
		if !again.IsZero() && (next.IsZero() || again.Before(next)) {
			next = again
		}
		if !there && !v.announced {
			delete(m.vips, prefix)
		}
	}
	return actions, next
}

// step decides of one. not is why it cannot be announced; patient: the condition may be one that is about to change.
func (v *vip) step(now time.Time, not string, wanted *Wanted, graced time.Time, patient bool) (next time.Time) {
	switch {
	case not != "" && v.announced && patient && v.why == Kept && now.Before(graced):
		return graced
	case not != "":
		v.withdrawn = v.withdrawn || v.announced
		v.announced, v.good, v.why = false, time.Time{}, not
		return time.Time{}
	}
	if v.good.IsZero() {
		v.good = now
	}
	if at := v.good.Add(wanted.Delay); !v.announced && v.withdrawn && now.Before(at) {
		v.why = Waiting
		return at
	}
	v.announced, v.why = true, Able
	return time.Time{}
}

// Announced are the VIPs that routers have been told.
func (m *Machine) Announced() (prefixes []netip.Prefix) {
	for prefix, v := range m.vips {
		if v.announced {
			prefixes = append(prefixes, prefix)
		}
	}
	slices.SortFunc(prefixes, comparePrefixes)
	return prefixes
}

// Status tells how each VIP stands.
func (m *Machine) Status() (list []Status) {
	for _, prefix := range slices.SortedFunc(maps.Keys(m.vips), comparePrefixes) {
		v := m.vips[prefix]
		list = append(list, Status{prefix, v.announced, v.since, v.why})
	}
	return list
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
