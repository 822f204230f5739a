package replica

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants of who is on the ring.
const (
	NodesMax    = 63               // numbers are 1 to NodesMax
	reportStale = 3 * time.Second  // a node that has said nothing for so long tells nothing of others
	deadAfter   = 10 * time.Second // and for so long: it is taken off the ring
	steadyTime  = time.Second      // a first ring is made when for so long nobody has come
	returnTime  = 5 * time.Second  // a node that was taken off comes back when most have heard it for so long; see restless
	slowTime    = 3 * time.Second  // a step that takes longer is worth saying
	versionJump = 1 << 10          // beyond what nodes of a store that was restored may have
)

// PeerNode is a load balancer that has a number.
type PeerNode struct {
	Number      uint16         `json:"number"`
	Name        string         `json:"name"`
	Address     netip.AddrPort `json:"address"`     // where others send to it: messages to the address, copies to the port
	Incarnation uint64         `json:"incarnation"` // of its entries, as the ring has them: with another it has lost them
}

// Members is what a controller must not lose of the ring and of who is on it.
type Members struct {
	Chain   int        `json:"chain"` // L of Ring
	Ring    State      `json:"ring"`
	Nodes   []PeerNode `json:"nodes"`             // by number, ascending; they need not be on the ring
	Drained []string   `json:"drained,omitempty"` // names of those that are kept off the ring
}

// Node returns that of a name, nil: it has no number.
func (m *Members) Node(name string) *PeerNode {
	for i := range m.Nodes {
		if m.Nodes[i].Name == name {
			return &m.Nodes[i]
		}
	}
	return nil
}

// Current is the newest list.
func (m *Members) Current() ring.List { return m.Ring.list() }

// Chains says how chains are made of the list.
func (m *Members) Chains() ring.Chains { return ring.Chains{Length: max(1, m.Chain)} }

func (m *Members) clone() Members {
	c := *m
	c.Ring, c.Nodes, c.Drained = m.Ring.clone(), slices.Clone(m.Nodes), slices.Clone(m.Drained)
	return c
}

// Report is what a load balancer has said last.
type Report struct {
	Name         string
	Age          time.Duration  // of the report
	Address      netip.AddrPort // not valid: it has none yet
	Incarnation  uint64
	View, Synced uint32
	Done         []uint32 // syncs
	Heard        []uint16 // numbers of nodes that answer it
	Silent       []uint16 // and that do not
	Shares       bool     // it can do a share of a sync: earlier versions cannot
}

func (r *Report) fresh() bool { return r.Age < reportStale }

// Membership decides who is on the ring: who comes, who has failed, and who has lost what it knew (4.3.3). Make one by NewMembership. What it makes of
// Members must be stored before nodes are told. Not safe for concurrent use.
type Membership struct {
	Members Members

	ring    *Controller
	began   time.Time
	joined  time.Time            // when a node got a number last
	heard   map[uint16]time.Time // since when most nodes hear it
	left    map[uint16]bool      // taken off the ring because it failed, or it is not known why
	unrest  map[uint16]*restless
	waiting map[uint16]time.Time // since when a node has another view than the newest
	blocked []string
}

// NewMembership goes on from what was stored; the zero value: nothing.
func NewMembership(stored Members, now time.Time) *Membership {
	m := &Membership{began: now, heard: map[uint16]time.Time{}, left: map[uint16]bool{}, unrest: map[uint16]*restless{}, waiting: map[uint16]time.Time{}}
	m.Reload(stored)
	for list, i := stored.Current(), 0; i < len(stored.Nodes) && len(list) > 0; i++ {
		_, on := list.Find(stored.Nodes[i].Number)
		m.left[stored.Nodes[i].Number] = !on // perhaps
	}
	return m
}

// Reload goes on from what is stored where something else is than this has made.
func (m *Membership) Reload(stored Members) {
	m.Members = stored.clone()
	m.restart()
}

func (m *Membership) restart() {
	config := DefaultConfig(max(1, m.Members.Chain))
	m.ring = NewController(&config, m.Members.Ring)
}

// Phase returns what the ring is waiting for.
func (m *Membership) Phase() Phase { return m.ring.Phase() }

// Blocked tells, for people, what keeps the ring from being as it should.
func (m *Membership) Blocked() []string { return m.blocked }

// Starts are the syncs to be done, by the node that leads each.
func (m *Membership) Starts() map[uint16][]ring.Sync {
	starts := map[uint16][]ring.Sync{}
	if m.ring.syncing {
		for _, sync := range m.Members.Ring.Ongoing {
			starts[sync.Node] = append(starts[sync.Node], sync)
		}
	}
	return starts
}

// Wanted is what the fleet's configuration says of the ring.
type Wanted struct {
	On    bool // a service needs it
	Chain int  // L
}

// Step takes what nodes have said last, and does what follows. It reports whether Members has changed.
func (m *Membership) Step(now time.Time, wanted Wanted, reports []Report) (changed bool) {
	m.blocked = nil
	if !wanted.On && len(m.Members.Nodes) == 0 {
		return false
	}
	if !wanted.On {
		wanted.Chain = m.Members.Chain
	}
	reports = slices.SortedFunc(slices.Values(reports), func(a, b Report) int { return cmp.Compare(a.Name, b.Name) })
	before := m.Members.clone()
	m.admit(now, reports)
	said := m.byNumber(reports)
	m.hold(now, said)
	m.listen(now, said)
	m.share(said)
	switch list := m.Members.Current(); {
	case len(list) == 0:
		if wanted.On {
			m.begin(now, wanted.Chain, said)
		}
	case m.overtaken(said):
	case m.lengthen(wanted.Chain):
	default:
		m.acknowledge(said)
		if !m.expel(now, said) && m.ring.Phase() == Synced {
			_ = m.release(said) || m.accept(now, said)
		}
	}
	m.Members.Ring = m.ring.State
	m.await(now, said)
	return !m.Members.same(&before)
}

func (m *Members) same(other *Members) bool {
	return m.Chain == other.Chain && slices.Equal(m.Nodes, other.Nodes) && slices.Equal(m.Drained, other.Drained) &&
		m.Ring.Version == other.Ring.Version && m.Ring.Synced == other.Ring.Synced
}

// share has the next syncs shared if all nodes of the ring can. One that has said nothing yet is taken for an earlier version.
func (m *Membership) share(said map[uint16]*Report) {
	cannot := func(member ring.Member) bool { r := said[member.Node]; return r == nil || !r.Shares }
	m.ring.config.Rules.ShareCopies = !slices.ContainsFunc(m.Members.Current(), cannot)
	for _, sync := range m.Members.Ring.Ongoing {
		if r := said[sync.Node]; sync.To != (ring.Places{}) && r != nil && !r.Shares {
			m.blocked = append(m.blocked, fmt.Sprintf("%s cannot do its share of sync %d, because it runs an earlier version: upgrade or stop it",
				m.name(sync.Node), sync.ID))
		}
	}
}

// admit gives numbers to those who have none, and notes where all are.
func (m *Membership) admit(now time.Time, reports []Report) {
	members := &m.Members
	for i := range reports {
		r := &reports[i]
		if !r.fresh() || !r.Address.IsValid() {
			continue
		}
		if other := m.family(r.Name); other != nil && other.Address.Addr().Is6() != r.Address.Addr().Is6() {
			m.blocked = append(m.blocked, fmt.Sprintf("%s is at %s and %s at %s: load balancers that replicate speak one of IPv4 and IPv6: set --peer-address",
				r.Name, r.Address.Addr(), other.Name, other.Address.Addr()))
			continue
		}
		if node := members.Node(r.Name); node != nil {
			if node.Address != r.Address && m.of(node.Number).mayMove(now) {
				node.Address = r.Address
			}
			continue
		}
		number, ok := m.number(reports)
		if !ok {
			m.blocked = append(m.blocked, fmt.Sprintf("%s has no place: a ring has %d load balancers at most", r.Name, NodesMax))
			continue
		}
		members.Nodes = append(members.Nodes, PeerNode{Number: number, Name: r.Name, Address: r.Address})
		slices.SortFunc(members.Nodes, func(a, b PeerNode) int { return cmp.Compare(a.Number, b.Number) })
		m.joined = now
	}
}

// family returns a node other than that of a name, whose family of addresses all others must have.
func (m *Membership) family(name string) *PeerNode {
	list := m.Members.Current()
	var found *PeerNode
	for i := range m.Members.Nodes {
		node := &m.Members.Nodes[i]
		if _, on := list.Find(node.Number); node.Name != name && (found == nil || on) {
			found = node
		}
	}
	return found
}

// number returns one that is free, or that of a node that nobody has heard of for long.
func (m *Membership) number(reports []Report) (uint16, bool) {
	taken := map[uint16]bool{}
	for i := range m.Members.Nodes {
		taken[m.Members.Nodes[i].Number] = true
	}
	for number := uint16(1); number <= NodesMax; number++ {
		if !taken[number] {
			return number, true
		}
	}
	for i := range m.Members.Nodes {
		node := m.Members.Nodes[i]
		known := slices.ContainsFunc(reports, func(r Report) bool { return r.Name == node.Name }) ||
			slices.ContainsFunc(m.Members.Ring.Lists, func(list ring.List) bool { _, on := list.Find(node.Number); return on })
		if !known {
			m.Members.Nodes = slices.Delete(m.Members.Nodes, i, i+1)
			return node.Number, true
		}
	}
	return 0, false
}

// byNumber returns what the nodes with a number have said last.
func (m *Membership) byNumber(reports []Report) map[uint16]*Report {
	said := map[uint16]*Report{}
	for i := range reports {
		if node := m.Members.Node(reports[i].Name); node != nil {
			said[node.Number] = &reports[i]
		}
	}
	return said
}

// listen notes since when most nodes hear a node: those of the ring or, without one, all.
func (m *Membership) listen(now time.Time, said map[uint16]*Report) {
	list := m.Members.Current()
	for i := range m.Members.Nodes {
		number := m.Members.Nodes[i].Number
		asked, heard := 0, 0
		for other, r := range said {
			if _, on := list.Find(other); other == number || !r.fresh() || len(list) > 0 && !on {
				continue
			}
			asked++
			if slices.Contains(r.Heard, number) {
				heard++
			}
		}
		own := said[number]
		if own == nil || !own.fresh() || 2*heard <= asked {
			delete(m.heard, number)
		} else if m.heard[number].IsZero() {
			m.heard[number] = now
		}
	}
}

// ready reports whether a node may come onto the ring.
func (m *Membership) ready(now time.Time, node *PeerNode) bool {
	since, steady := m.heard[node.Number], time.Duration(0)
	if m.left[node.Number] {
		steady = m.of(node.Number).wait()
	}
	return !since.IsZero() && now.Sub(since) >= steady && !slices.Contains(m.Members.Drained, node.Name)
}

// begin makes a first ring when enough nodes are there.
func (m *Membership) begin(now time.Time, chain int, said map[uint16]*Report) {
	var numbers []uint16
	for i := range m.Members.Nodes {
		if node := &m.Members.Nodes[i]; m.ready(now, node) {
			numbers = append(numbers, node.Number)
		}
	}
	if len(numbers) <= chain {
		m.blocked = append(m.blocked, fmt.Sprintf("%s ready for a ring: chains of %d need %d, so that one may fail: until then connections go by hash",
			model.Counted(len(numbers), "load balancer is", "load balancers are"), chain, chain+1))
		return
	}
	if now.Sub(m.joined) < steadyTime {
		return
	}
	m.reset(max(m.Members.Ring.Version, newestView(said, len(said))), chain)
	if m.change(Change{Add: numbers}) {
		m.learn(said, numbers)
	}
}

// reset forgets the ring, but for what numbers are used up.
func (m *Membership) reset(version uint32, chain int) {
	ring := &m.Members.Ring
	for _, sync := range ring.Ongoing {
		ring.Cancelled = append(ring.Cancelled, sync.ID)
	}
	ring.Version, ring.Synced, ring.Lists, ring.Since, ring.Ongoing = version, 0, nil, nil, nil
	m.Members.Chain = chain
	m.restart()
}

// newestView is beyond the version that most of some nodes have; 0: most have none.
func newestView(said map[uint16]*Report, nodes int) uint32 {
	var views []uint32
	for _, r := range said {
		if r.View > 0 {
			views = append(views, r.View)
		}
	}
	if 2*len(views) <= nodes {
		return 0
	}
	slices.Sort(views)
	return views[len(views)/2] + versionJump
}

// overtaken starts the ring again if most of its nodes have a newer view than the store ever had: that was restored from a copy, or emptied. What chains
// know is given up, as nobody knows any more who was in them; answers stay.
func (m *Membership) overtaken(said map[uint16]*Report) bool {
	list := m.Members.Current()
	ahead := map[uint16]*Report{}
	for _, member := range list {
		if r := said[member.Node]; r != nil && r.fresh() && r.View > m.Members.Ring.Version {
			ahead[member.Node] = r
		}
	}
	newest := newestView(ahead, len(list))
	return newest != 0 && m.afresh(newest, m.Members.Chain)
}

// lengthen starts the ring again with chains of another length.
func (m *Membership) lengthen(chain int) bool {
	if chain == m.Members.Chain {
		return false
	}
	if n := len(m.Members.Current()); n <= chain {
		m.blocked = append(m.blocked, fmt.Sprintf("%s on the ring: chains of %d need %d: they stay at %d", model.Counted(n, "load balancer is", "load balancers are"), chain, chain+1, m.Members.Chain))
		return false
	}
	return m.afresh(m.Members.Ring.Version, chain)
}

// afresh gives all nodes another life, in a version after the one given.
func (m *Membership) afresh(version uint32, chain int) bool {
	list := m.Members.Current()
	m.reset(version, chain)
	return m.change(Change{AddAt: list})
}

// acknowledge tells the ring what nodes have.
func (m *Membership) acknowledge(said map[uint16]*Report) {
	for i := range m.Members.Nodes {
		node := &m.Members.Nodes[i]
		r := said[node.Number]
		if r == nil || r.Incarnation != node.Incarnation || r.View > m.Members.Ring.Version {
			continue
		}
		m.ring.Receive(Message{Kind: ViewAck, From: node.Number, View: r.View, Synced: r.Synced})
		for _, sync := range r.Done {
			m.ring.Receive(Message{Kind: SyncDone, From: node.Number, Sync: sync})
		}
	}
}

// release takes off one that is to be kept off the ring.
func (m *Membership) release(said map[uint16]*Report) bool {
	for _, name := range m.Members.Drained {
		node := m.Members.Node(name)
		if node == nil {
			continue
		}
		if _, on := m.Members.Current().Find(node.Number); on && m.change(Change{Remove: []uint16{node.Number}}) {
			return true
		}
	}
	return false
}

// accept takes one onto the ring: one after the other, so that no chain loses all that know it.
func (m *Membership) accept(now time.Time, said map[uint16]*Report) bool {
	for i := range m.Members.Nodes {
		node := &m.Members.Nodes[i]
		_, on := m.Members.Current().Find(node.Number)
		if known := m.of(node.Number); !on && known.times > 1 && m.left[node.Number] && !m.ready(now, node) && said[node.Number] != nil {
			m.blocked = append(m.blocked, fmt.Sprintf("%s has failed, or lost its entries, %d times lately: it joins the ring when it has answered for %v", node.Name, known.times, known.wait()))
		}
		if !on && m.ready(now, node) && m.change(Change{Add: []uint16{node.Number}}) {
			m.learn(said, []uint16{node.Number})
			delete(m.left, node.Number)
			return true
		}
	}
	return false
}

// learn notes whose entries are which from now on.
func (m *Membership) learn(said map[uint16]*Report, numbers []uint16) {
	for i := range m.Members.Nodes {
		if node := &m.Members.Nodes[i]; slices.Contains(numbers, node.Number) {
			node.Incarnation = said[node.Number].Incarnation
		}
	}
}

func (m *Membership) change(change Change) bool {
	_, err := m.ring.Change(change)
	if err == nil {
		return true
	}
	for _, number := range slices.Concat(change.Add, change.Remove) {
		why := err.Error()
		switch {
		case errors.Is(err, ErrTooFew):
			why = fmt.Sprintf("chains of %d need %d load balancers, so that one may fail", m.Members.Chain, m.Members.Chain+1)
		case errors.Is(err, ErrNoCommon):
			why = "a chain would lose all that know its connections"
		}
		m.blocked = append(m.blocked, fmt.Sprintf("%s stays where it is: %s", m.name(number), why))
	}
	return false
}

func (m *Membership) name(number uint16) string {
	for i := range m.Members.Nodes {
		if m.Members.Nodes[i].Number == number {
			return m.Members.Nodes[i].Name
		}
	}
	return fmt.Sprint("number ", number)
}

// await tells whom the ring waits for, if that takes long.
func (m *Membership) await(now time.Time, said map[uint16]*Report) {
	for _, member := range m.Members.Current() {
		r := said[member.Node]
		if r != nil && r.View == m.Members.Ring.Version {
			delete(m.waiting, member.Node)
			continue
		}
		if m.waiting[member.Node].IsZero() {
			m.waiting[member.Node] = now
		}
		if for_ := now.Sub(m.waiting[member.Node]); for_ >= slowTime {
			m.blocked = append(m.blocked, fmt.Sprintf("%s has not taken version %d of the ring for %v: see its log", m.name(member.Node), m.Members.Ring.Version, for_.Round(time.Second)))
		}
	}
}
