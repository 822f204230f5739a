// Package gateways decides which load balancers a network function sends to: those that answer BFD (RFC 5880). It is pure: time and random
// numbers are arguments, nothing here does I/O.
//
// Departs from RFC 5880 6.8.1: the discriminator of each packet is another random number. Load balancers keep no state of a neighbour and return
// what came, so an answer shows that its sender has seen a packet of late: one that is forged, sent again or late is of no packet that waits for one.
// Departs from 6.8.7: packets are sent without jitter, so that a load balancer that died is noticed in the time that is documented.
package gateways

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Implementation constants. One that dies leaves the route within Interval * Multiplier to Interval * (Multiplier + 1).
const (
	Interval   = 100 * time.Millisecond // between two packets to a load balancer
	Multiplier = 3                      // packets in a row without an answer: it is dead
	rejoin     = 3                      // answers in a row: it is used
)

// State is that of RFC 5880 4.1.
type State uint8

// States.
const (
	AdminDown State = iota
	Down
	Init
	Up
)

// Packet is what of a control packet is decided here.
type Packet struct {
	State       State
	Mine, Yours uint32 // discriminators, of its sender and its receiver
}

// Probe is a packet to a load balancer.
type Probe struct {
	To netip.Addr
	Packet
}

// Machine knows the load balancers of one family of addresses.
type Machine struct {
	peers   map[netip.Addr]*peer
	used    []netip.Addr
	refused uint64
}

type peer struct {
	theirs  uint32 // discriminator; 0: not known
	sent    [Multiplier]question
	next    int // of sent, that is replaced
	silent  int // packets sent since the last that was answered
	answers int // in a row, in state Up
	heard   time.Time
}

// question is a packet that no answer has come to; mine 0: none.
type question struct {
	mine uint32
	at   time.Time
}

func (p *peer) answering() bool { return p.answers >= rejoin }

// Follow takes the list of load balancers. Without any nothing is known of them, and nothing changes.
func (m *Machine) Follow(addresses []netip.Addr) {
	if len(addresses) == 0 {
		return
	}
	if m.peers == nil {
		m.peers = map[netip.Addr]*peer{}
	}
	for _, address := range addresses {
		if m.peers[address] == nil {
			m.peers[address] = &peer{}
		}
	}
	maps.DeleteFunc(m.peers, func(address netip.Addr, _ *peer) bool { return !slices.Contains(addresses, address) })
}

// Step finds who is dead, and returns what to send. It is to be called once in an Interval, when all answers that are there have been given to Answer.
func (m *Machine) Step(now time.Time, random func() uint32) (probes []Probe) {
	var live []netip.Addr
	for _, address := range slices.SortedFunc(maps.Keys(m.peers), netip.Addr.Compare) {
		p := m.peers[address]
		if p.silent >= Multiplier {
			p.theirs, p.answers = 0, 0
		}
		if p.answering() {
			live = append(live, address)
		}
		probes = append(probes, Probe{address, p.ask(now, random)})
	}
	if len(live) > 0 {
		m.used = live
	}
	return probes
}

func (p *peer) ask(now time.Time, random func() uint32) Packet {
	mine := random()
	for mine == 0 {
		mine = random()
	}
	p.sent[p.next] = question{mine, now}
	p.next = (p.next + 1) % Multiplier
	p.silent++
	if p.theirs == 0 {
		return Packet{State: Down, Mine: mine}
	}
	return Packet{State: Up, Mine: mine, Yours: p.theirs}
}

// Answer takes a packet. One that answers none of the last Multiplier is refused, and counted.
func (m *Machine) Answer(from netip.Addr, packet Packet) (taken bool) {
	p := m.peers[from]
	if p == nil || packet.Mine == 0 || packet.Yours == 0 {
		m.refused++
		return false
	}
	at := slices.IndexFunc(p.sent[:], func(q question) bool { return q.mine == packet.Yours })
	if at < 0 {
		m.refused++
		return false
	}
	asked := p.sent[at].at
	p.sent[at] = question{}
	if packet.State < Init { // it wants to be left
		p.theirs, p.answers = 0, 0
		return true
	}
	p.theirs = packet.Mine
	if packet.State == Up {
		p.answers++
	}
	p.silent = min(p.silent, (p.next-at-1+Multiplier)%Multiplier)
	if asked.After(p.heard) { // what is known is that it lived when it was asked
		p.heard = asked
	}
	return true
}

// Use is where to send: those that answer. Where none does, it is those that were the last to: this host may be the one that hears nothing, and packets
// that went another way would pass by their function.
func (m *Machine) Use() []netip.Addr { return m.used }

// Refused is how many packets answered nothing.
func (m *Machine) Refused() uint64 { return m.refused }

// Status is how a load balancer is.
type Status struct {
	Address netip.Addr
	Answers bool
	Used    bool
	Heard   time.Time // the latest at which it is known to have lived; zero: never
}

// Status lists the load balancers by address.
func (m *Machine) Status() (all []Status) {
	for _, address := range slices.SortedFunc(maps.Keys(m.peers), netip.Addr.Compare) {
		p := m.peers[address]
		all = append(all, Status{address, p.answering(), slices.Contains(m.used, address), p.heard})
	}
	return all
}
