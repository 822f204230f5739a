// Package segment decides which VIPs a load balancer answers for, where clients or their router are on its own segment and find VIPs by ARP and Neighbor
// Discovery: answers of others and their advertisements in, probes and claims out.
//
// Who owns a VIP is who answers for it. A load balancer that could carry a VIP asks for it all the time, as a client would, and takes it when nobody answers: so
// a VIP is never taken from one that is heard on the segment, whatever else fails. Data paths answer, not daemons: one whose daemon has been silent for Lease
// goes on for hosts, but no longer answers load balancers, until one of them announces that it has taken the VIP. Advertisements say who else could carry
// which VIP, and whose MAC addresses are those of load balancers; who has no key cannot make them. No controller takes part.
package segment

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/rendezvous"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants: a VIP is missed within Period + Misses*Retry: 440 ms.
const (
	Period = 200 * time.Millisecond // between two probes of a VIP that is answered, at least
	Retry  = 80 * time.Millisecond  // without an answer
	Misses = 3

	turn        = 80 * time.Millisecond  // that a load balancer waits for each that comes before it
	settle      = 500 * time.Millisecond // after a start, and after a claim, until others are heard of
	each        = 4 * time.Millisecond   // more VIPs are asked for less often
	actionsMax  = 64                     // at once: answers need room
	pause       = 2 * time.Millisecond   // after so many
	advertEvery = time.Second
	stale       = 3500 * time.Millisecond // of what a peer has said
	doubles     = 5 * time.Second         // between two looks whether another one answers for a VIP of ours
	defend      = 10 * time.Second        // RFC 5227 2.4: between two announcements against one that is no load balancer
	evenAfter   = 5 * time.Second         // that a peer is heard until it is given VIPs to even them out
	evenEvery   = time.Second
)

var announceAt = []time.Duration{0, 100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} // after a claim

// Kind is what an action does.
type Kind uint8

// Kinds of actions.
const (
	Probe     Kind = iota // ask who has VIP: To, or everybody
	Take                  // answer for VIP from now on
	Hold                  // answer hosts for VIP from now on, but no load balancer
	Leave                 // do not any more
	Announce              // say to everybody that VIP is here
	Advertise             // send what Adverts returns
)

// Action is what is to be done, in this order.
type Action struct {
	Kind Kind
	VIP  netip.Addr
	To   MAC
	Why  string
}

// Entry is what a load balancer says of a VIP.
type Entry struct {
	VIP    netip.Addr
	Able   bool // it could carry it
	Owned  bool // it answers for it
	Handed bool // it leaves it to Advert.To
	Asked  bool // it asks Advert.To, which has more, to leave it
	Off    bool // its configuration is model.VIPOff
}

// Advert is what a load balancer says to the others on the segment.
type Advert struct {
	Name    string
	MAC     MAC
	Sent    int64  // ns since 1970; later ones have more
	Owned   uint16 // VIPs that it owns
	Greets  bool   // it has just started, and knows nothing of the others
	To      string // who takes what is handed over, or is asked
	Entries []Entry
}

// vip is one that is known.
type vip struct {
	able  bool
	owned bool
	held  bool      // hosts are answered, and the other load balancers are asked
	since time.Time // of owned or held
	why   string    // it is as it is

	owner  MAC       // load balancer that answered last
	waits  bool      // for the answer to the last probe
	missed int       // in a row
	next   time.Time // when something is to be done
	take   time.Time // when it is taken unless somebody answers; zero: somebody does

	announced int
	defended  time.Time
	history
}

// said is an entry and when it came.
type said struct {
	Entry
	at time.Time
}

// peer is another load balancer.
type peer struct {
	mac     MAC
	sent    int64
	first   time.Time // since when it is heard without a gap
	heard   time.Time // zero: never by this process
	answers time.Time // its last answer
	owned   int
	entries map[netip.Addr]said
}

func (p *peer) fresh(now time.Time) bool { return !p.heard.IsZero() && now.Sub(p.heard) < stale }

func (p *peer) says(vip netip.Addr, now time.Time) (Entry, bool) {
	e, known := p.entries[vip]
	return e.Entry, known && p.fresh(now) && now.Sub(e.at) < stale
}

// Machine decides for one load balancer. Make one by New. It is not safe for concurrent use.
type Machine struct {
	name  string
	mac   MAC
	began time.Time
	vips  map[netip.Addr]*vip
	peers map[string]*peer
	how   map[netip.Addr]model.VIPAnnouncement // of those that are not VIPAuto

	advertise  bool
	advertised time.Time
	sent       int64 // of the last one
	greeted    bool
	evened     time.Time
	handed     map[netip.Addr]string // since the last advertisement
	asked      netip.Addr            // that the next advertisement asks askedOf for; not valid: none
	askedOf    string
}

// New makes one that goes on with what an earlier process of this load balancer answered for, and knows the peers that it knew. lapsed: the data path has
// done so for longer than Lease without a process.
func New(name string, mac MAC, owned []netip.Addr, lapsed bool, peers map[string]MAC, now time.Time) *Machine {
	m := &Machine{name: name, mac: mac, began: now, vips: map[netip.Addr]*vip{}, peers: map[string]*peer{}, advertise: true, handed: map[netip.Addr]string{}}
	for _, address := range owned {
		m.vips[address] = &vip{able: true, owned: !lapsed, held: lapsed, since: now, next: now, why: "it was answered for before the restart", announced: len(announceAt),
			history: history{ours: true}}
	}
	for name, mac := range peers {
		m.peers[name] = &peer{mac: mac, entries: map[netip.Addr]said{}}
	}
	return m
}

// SetMAC is called when the device is there again, or has another address: what is owned is announced again.
func (m *Machine) SetMAC(mac MAC, now time.Time) {
	m.mac, m.advertise = mac, true
	for _, v := range m.vips {
		v.asked = time.Time{}
		if v.next = now; v.owned {
			v.announced, v.since = 0, now
		}
	}
	clear(m.handed) // nobody was told meanwhile, and the VIPs may be elsewhere by now
	m.asked = netip.Addr{}
}

// SetAble says what this load balancer could carry: empty: it could, else why not. VIPs that are not there exist no more.
func (m *Machine) SetAble(now time.Time, able map[netip.Addr]string) (actions []Action) {
	for address, not := range able {
		v := m.vips[address]
		if v == nil {
			v = &vip{next: now}
			m.vips[address] = v
		}
		if was := v.able; was != (not == "") {
			v.able, m.advertise = not == "", true
			v.next, v.missed, v.waits, v.take, v.asked = now, 0, false, time.Time{}, time.Time{}
		}
		if !v.able {
			heir := ""
			if m.how[address] != model.VIPOff {
				heir = m.heir(now, address)
			}
			actions = append(actions, m.leave(now, address, v, not, heir)...)
			v.why = not
		}
	}
	for address, v := range m.vips {
		if _, there := able[address]; !there {
			actions = append(actions, m.leave(now, address, v, "no service has it", "")...)
			delete(m.vips, address)
		}
	}
	slices.SortFunc(actions, func(a, b Action) int { return a.VIP.Compare(b.VIP) })
	return actions
}

// Step does what time brings. next is when it is to be called again at the latest.
func (m *Machine) Step(now time.Time) (actions []Action, next time.Time) {
	m.even(now)
	more := false
	for _, address := range slices.SortedFunc(maps.Keys(m.vips), netip.Addr.Compare) {
		v := m.vips[address]
		if !m.asks(address, v) || now.Before(v.next) {
			continue
		}
		if more = len(actions) >= actionsMax; more {
			break
		}
		switch {
		case v.owned:
			actions = append(actions, m.keep(now, address, v)...)
		case v.able:
			actions = append(actions, m.watch(now, address, v)...)
		default:
			if v.next = now.Add(m.looksEvery()); v.asked.IsZero() {
				v.asked = now
			}
			actions = append(actions, Action{Kind: Probe, VIP: address})
		}
	}
	if m.advertise || now.Sub(m.advertised) >= advertEvery {
		m.advertise, m.advertised = false, now
		actions = append(actions, Action{Kind: Advertise})
	}
	next = m.advertised.Add(advertEvery)
	for address, v := range m.vips {
		if m.asks(address, v) && v.next.Before(next) {
			next = v.next
		}
	}
	if more {
		next = now.Add(pause) // for the answers to these
	}
	return actions, next
}

// period is between two probes of a VIP that is answered.
func (m *Machine) period() time.Duration { return max(Period, time.Duration(len(m.vips))*each) }

// watch asks for a VIP of another one, and takes it if nobody answers.
func (m *Machine) watch(now time.Time, address netip.Addr, v *vip) []Action {
	if v.waits {
		v.missed++
		if v.missed == Misses && v.owner != (MAC{}) {
			m.suspect(now, v.owner)
			if _, p := m.peerAt(v.owner); p != nil && now.Sub(p.answers) > Misses*Retry {
				p.heard = time.Time{} // it inherits nothing until it is heard again
			}
		}
	}
	if v.asked.IsZero() {
		v.asked = now
	}
	if v.missed >= Misses && now.Sub(m.began) >= settle {
		if why := m.barred(now, address, v); why != "" {
			v.why, v.take, v.waits, v.next = why, time.Time{}, true, now.Add(m.asksEvery())
			return []Action{{Kind: Probe, VIP: address}}
		}
		if v.take.IsZero() {
			v.take = now.Add(time.Duration(m.place(now, address, v)) * turn)
		}
		if !now.Before(v.take) {
			return m.take(now, address, v, m.missing(now, address, v))
		}
	}
	probe := Action{Kind: Probe, VIP: address}
	if v.missed == 0 {
		probe.To = v.owner
	}
	v.waits, v.next = true, now.Add(Retry)
	if !v.take.IsZero() && v.take.Before(v.next) {
		v.next = v.take
	}
	return []Action{probe}
}

// NotSent takes note that a probe could not be sent: that nobody answers says nothing.
func (m *Machine) NotSent(address netip.Addr) {
	if v := m.vips[address]; v != nil {
		v.waits, v.asked = false, time.Time{}
	}
}

// suspect has all VIPs asked for at once that one answered for which does not answer for one of them.
func (m *Machine) suspect(now time.Time, owner MAC) {
	for _, v := range m.vips {
		if v.owner == owner && v.missed == 0 && !v.owned && !v.waits {
			v.next = now
		}
	}
}

// contenders are those who could carry a VIP, this load balancer included if it can, best first. gone is not among them.
func (m *Machine) contenders(now time.Time, address netip.Addr, gone MAC) []string {
	var names []string
	if v := m.vips[address]; v != nil && v.able {
		names = append(names, m.name)
	}
	for name, p := range m.peers {
		if e, known := p.says(address, now); known && e.Able && p.mac != gone {
			names = append(names, name)
		}
	}
	return rendezvous.Elect(address.String(), names, len(names))
}

// place is how many come before this load balancer.
func (m *Machine) place(now time.Time, address netip.Addr, v *vip) int {
	return max(0, slices.Index(m.contenders(now, address, v.owner), m.name))
}

// heir is who takes a VIP that this load balancer leaves; empty: nobody is known.
func (m *Machine) heir(now time.Time, address netip.Addr) string {
	for _, name := range m.contenders(now, address, m.mac) {
		if name != m.name {
			return name
		}
	}
	return ""
}

func (m *Machine) take(now time.Time, address netip.Addr, v *vip, why string) []Action {
	v.owned, v.held, v.since, v.why, v.owner = true, false, now, why, m.mac
	v.missed, v.waits, v.take, v.announced, v.next = 0, false, time.Time{}, 0, now
	v.ours, v.remembered, m.advertise = true, false, true
	return append([]Action{{Kind: Take, VIP: address, Why: why}}, m.keep(now, address, v)...)
}

// leave ends that a VIP is owned or held, if it is.
func (m *Machine) leave(now time.Time, address netip.Addr, v *vip, why, heir string) []Action {
	if !v.owned && !v.held {
		return nil
	}
	v.owned, v.held, v.since, v.why, v.owner = false, false, now, why, MAC{}
	v.missed, v.waits, v.take, v.next = 0, false, time.Time{}, now.Add(Retry) // for the heir
	m.advertise = true
	if heir != "" {
		m.handed[address] = heir
		why += ": left to " + heir
	}
	return []Action{{Kind: Leave, VIP: address, Why: why}}
}

// keep announces a VIP of this load balancer for a while, and then looks whether another one answers for it as well.
func (m *Machine) keep(now time.Time, address netip.Addr, v *vip) []Action {
	if v.announced < len(announceAt) {
		v.announced++
		v.next = now.Add(doubles)
		if v.announced < len(announceAt) {
			v.next = v.since.Add(announceAt[v.announced])
		}
		return []Action{{Kind: Announce, VIP: address}}
	}
	v.next = now.Add(doubles)
	actions := []Action{{Kind: Probe, VIP: address}}
	for _, p := range m.peers {
		if !p.fresh(now) { // its data path answers hosts until it has heard
			return append(actions, Action{Kind: Announce, VIP: address})
		}
	}
	return actions
}

// owned are the VIPs of this load balancer.
func (m *Machine) owned() (list []netip.Addr) {
	for address, v := range m.vips {
		if v.owned {
			list = append(list, address)
		}
	}
	return list
}

func (m *Machine) peerAt(mac MAC) (string, *peer) {
	for name, p := range m.peers {
		if p.mac == mac {
			return name, p
		}
	}
	return "", nil
}

// Answered takes note that a host answers for a VIP, or announces it.
func (m *Machine) Answered(now time.Time, address netip.Addr, by MAC) []Action {
	v := m.vips[address]
	if v == nil || by == m.mac {
		return nil
	}
	name, p := m.peerAt(by)
	if p == nil {
		return m.answeredByForeign(now, address, v, by)
	}
	p.answers = now
	if v.owned {
		if e, known := p.says(address, now); known && !e.Owned {
			return nil // it has left it meanwhile
		}
		if now.Sub(v.since) < settle {
			return nil // it had answered before it heard of the claim
		}
		return m.contest(now, address, v, name, p)
	}
	left := m.leave(now, address, v, name+" answers for it", "")
	v.owner, v.waits, v.missed, v.take = by, false, 0, time.Time{}
	v.why = name + " answers for it"
	if at := now.Add(m.period()); v.able && at.After(v.next) {
		v.next = at
	}
	return left
}

// contest decides which of two keeps a VIP that both answer for: all decide alike. One whose daemon is silent cannot leave it.
func (m *Machine) contest(now time.Time, address netip.Addr, v *vip, name string, p *peer) []Action {
	if p.fresh(now) && m.prefers(address, name) != 0 {
		if now.Sub(v.defended) < turn {
			return nil
		}
		v.defended, m.advertise = now, true
		return []Action{{Kind: Announce, VIP: address}}
	}
	return m.leave(now, address, v, name+" answers for it, too", "")
}

// Heard takes an advertisement that is genuine.
func (m *Machine) Heard(now time.Time, a *Advert) (actions []Action) {
	if a.Name == m.name {
		return nil
	}
	p := m.peers[a.Name]
	if p == nil {
		p = &peer{entries: map[netip.Addr]said{}}
		m.peers[a.Name] = p
	}
	if p.sent > now.Add(skewMax).UnixNano() {
		p.sent = 0 // a clock was set back
	}
	if a.Sent <= p.sent {
		return nil // sent again by somebody
	}
	if m.advertise = m.advertise || a.Greets; !p.fresh(now) {
		p.first, m.advertise = now, true
	}
	p.mac, p.sent, p.heard, p.owned = a.MAC, a.Sent, now, int(a.Owned)
	for _, e := range a.Entries {
		before, known := p.entries[e.VIP]
		p.entries[e.VIP] = said{e, now}
		v := m.vips[e.VIP]
		if v == nil {
			continue
		}
		m.remember(e, v)
		switch {
		case e.Handed && a.To == m.name && v.able && !v.owned && (v.owner == MAC{} || v.owner == a.MAC):
			actions = append(actions, m.take(now, e.VIP, v, a.Name+" has left it to this load balancer")...)
		case e.Asked && a.To == m.name && v.owned && len(m.owned()) >= p.owned+2:
			actions = append(actions, m.leave(now, e.VIP, v, a.Name+" has fewer", a.Name)...)
		case e.Owned && v.owned:
			actions = append(actions, m.contest(now, e.VIP, v, a.Name, p)...)
		case e.Owned && v.held:
			actions = append(actions, m.leave(now, e.VIP, v, a.Name+" has taken it", "")...)
		case known && before.Owned && !e.Owned && !v.owned && v.owner == a.MAC:
			v.owner, v.waits, v.missed, v.next = MAC{}, false, 0, now
			if e.Handed {
				v.next = now.Add(Retry) // for whom it is left to
			}
		}
	}
	maps.DeleteFunc(p.entries, func(_ netip.Addr, e said) bool { return now.Sub(e.at) >= stale })
	return actions
}
