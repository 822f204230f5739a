// What a machine says: to the other load balancers, and to those who look.
package segment

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Adverts are what is to be said now, in pieces of at most so many entries. What is for one load balancer is in pieces of its own.
func (m *Machine) Adverts(now time.Time, most int) (list []Advert) {
	byReader := map[string][]Entry{"": nil}
	for _, address := range slices.SortedFunc(maps.Keys(m.vips), netip.Addr.Compare) {
		v, reader := m.vips[address], m.handed[address]
		e := Entry{VIP: address, Able: v.able, Owned: v.owned, Handed: reader != "" && !v.owned, Off: m.how[address] == model.VIPOff}
		if address == m.asked && reader == "" && v.able && !v.owned {
			reader, e.Asked = m.askedOf, true
		}
		byReader[reader] = append(byReader[reader], e)
	}
	clear(m.handed)
	m.asked = netip.Addr{}
	say := func(reader string, entries []Entry) {
		if m.sent = max(m.sent+1, now.UnixNano()); m.sent > now.Add(skewMax).UnixNano() {
			m.sent = now.UnixNano() // the clock was set back
		}
		list = append(list, Advert{Name: m.name, MAC: m.mac, Sent: m.sent, Owned: uint16(len(m.owned())), Greets: !m.greeted, To: reader, Entries: entries})
	}
	for _, reader := range slices.Sorted(maps.Keys(byReader)) {
		for entries := range slices.Chunk(byReader[reader], most) {
			say(reader, entries)
		}
	}
	if len(list) == 0 {
		say("", nil)
	}
	m.greeted = true
	return list
}

// VIPStatus is how a VIP stands.
type VIPStatus struct {
	VIP       netip.Addr
	Owned     bool
	Held      bool // this load balancer answers hosts for it, and asks the others
	Able      bool
	Since     time.Time // it was taken or left; zero: neither, by this process
	Owner     string    // load balancer that answers for it; empty: none is known
	Heir      string    // load balancer that takes it if this one, its owner, is gone; empty: none could
	Vacant    bool      // this load balancer could carry it, and nobody answers
	Why       string
	Foreign   MAC       // a host that answers for it, and is no load balancer; zero: none
	Barred    bool      // that host keeps this load balancer from taking it
	Off       bool      // it is given up: model.VIPOff
	Looked    bool      // long enough to say that no host answers where Foreign is none
	ForeignAt time.Time // its last answer
}

// Status says how each VIP stands.
func (m *Machine) Status(now time.Time) (list []VIPStatus) {
	for _, address := range slices.SortedFunc(maps.Keys(m.vips), netip.Addr.Compare) {
		v := m.vips[address]
		s := VIPStatus{VIP: address, Owned: v.owned, Held: v.held, Able: v.able, Since: v.since, Why: v.why}
		switch name, p := m.peerAt(v.owner); {
		case v.owned:
			s.Owner, s.Heir = m.name, m.heir(now, address)
		case v.able && p != nil && v.missed < Misses:
			s.Owner = name
		case !v.able: // it does not ask
			for name, p := range m.peers {
				if e, known := p.says(address, now); known && e.Owned {
					s.Owner = name
				}
			}
		default:
			s.Vacant = true
		}
		s.Off, s.Looked = m.how[address] == model.VIPOff, !v.asked.IsZero() && now.Sub(v.asked) >= m.life()
		if by, answers := m.foreign(now, v, m.life()); answers {
			s.Foreign, s.ForeignAt = by, v.foreignAt
			s.Barred = v.able && !v.owned && m.barred(now, address, v) != ""
		}
		list = append(list, s)
	}
	return list
}

// PeerStatus is how another load balancer stands.
type PeerStatus struct {
	Name  string
	MAC   MAC
	Heard time.Time // zero: not by this process
	Owned int
}

// Peers says how the others stand.
func (m *Machine) Peers() (list []PeerStatus) {
	for _, name := range slices.Sorted(maps.Keys(m.peers)) {
		p := m.peers[name]
		list = append(list, PeerStatus{name, p.mac, p.heard, p.owned})
	}
	return list
}

// Forget drops peers that are not among the fleet's nodes any more, and silent.
func (m *Machine) Forget(now time.Time, known func(name string) bool) {
	maps.DeleteFunc(m.peers, func(name string, p *peer) bool { return !known(name) && !p.fresh(now) })
}

// Kept is what the next process is to know of the peers: their addresses, by name. What is owned the data path knows.
func (m *Machine) Kept() map[string]MAC {
	peers := map[string]MAC{}
	for name, p := range m.peers {
		peers[name] = p.mac
	}
	return peers
}
