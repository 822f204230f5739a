package replication

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Port is where load balancers copy entries to each other, unless --peer-address says another.
const Port = 7475

// ParseAddress reads --peer-address: an address of this host, with or without a port. Empty: the zero address, with the usual port.
func ParseAddress(text string) (at netip.AddrPort, err error) {
	if text == "" {
		return netip.AddrPortFrom(netip.Addr{}, Port), nil
	}
	if address, err := netip.ParseAddr(text); err == nil {
		at = netip.AddrPortFrom(address.Unmap(), Port)
	} else if at, err = netip.ParseAddrPort(text); err != nil {
		return at, fmt.Errorf("--peer-address %q: use an address of this host, with a port if not %d: 10.0.0.1 or 10.0.0.1:7475", text, Port)
	}
	if !at.Addr().IsGlobalUnicast() || at.Addr().Zone() != "" || at.Port() == 0 {
		return at, fmt.Errorf("--peer-address %q: other load balancers cannot send there: use an address that they have a route to", text)
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
}

// Implementation constants.
const (
	tickPeriod   = 200 * time.Millisecond
	retryPeriod  = time.Second
	reportPeriod = time.Second
	countPeriod  = 10 * time.Second
	problemLife  = time.Minute // a failure is reported for so long
	copyEntries  = 4096        // of one Copy
)

// Options of New.
type Options struct {
	Name        string         // of this node
	Address     netip.AddrPort // given by the operator; without an address: one that tunnels come from
	Tables      *dataplane.Tables
	Credentials *pki.Credentials
	Send        func(*ballastv1.FromNode) // to all controllers
	Save        func()                    // makes State durable; called with no lock that State needs
	Log         *slog.Logger
}

// Replication is what a load balancer has to do with the others. All methods are safe for concurrent use.
type Replication struct {
	Options
	path    *lb.LB
	state   atomic.Pointer[State]
	live    atomic.Pointer[live]
	pings   pings
	behind  behind
	clients clients

	informed     atomic.Bool               // a controller, now or to an earlier process
	nameless     atomic.Pointer[time.Time] // since when there is a ring that does not know this node; nil: there is none
	cannotListen atomic.Pointer[string]    // why copies cannot be taken; empty: they can
	wake         chan struct{}             // there is something to report

	setReplicas func(plan.Replicas) error // of Tables

	mutex    sync.Mutex // guards what follows
	config   replica.Config
	machine  *replica.Node // nil: there is no ring yet
	entries  *table
	answers  *table
	revision uint64                       // of the ring's document received last
	signed   *ballastv1.SignedReplicaView // the ring that this node goes by; nil: no controller has signed it
	untaken  *ballastv1.ReplicaView       // received last, where it could not be carried out
	unshown  *lb.ReplicaView              // what packets should go by, where that could not be written
	done     []uint32
	copying  map[copyKey]bool // on their way
	calls    chan func(context.Context)
	period   time.Time // when the deletion interval began
	retried  time.Time
	counted  time.Time
	ended    map[ended]int // connections whose entries have expired
}

// State is what must survive the process.
type State struct {
	Address     netip.Addr `json:"address,omitzero"`    // that others reach this node at
	Incarnation uint64     `json:"incarnation"`         // of the entries in the pinned maps
	Number      uint16     `json:"number,omitempty"`    // of this node; 0: none yet
	Life        uint32     `json:"life,omitempty"`      // that the entries are of
	View        *View      `json:"view,omitempty"`      // nil: there is no ring yet
	PassedOn    string     `json:"passed_on,omitempty"` // load balancer that passed the view on; empty: a controller sent it
	Peers       []Peer     `json:"peers,omitempty"`     // this node included
}

func (s *State) isOnRing(number uint16) bool {
	if s.View == nil {
		return false
	}
	_, on := s.View.List.Find(number)
	return on
}

// View is a ring as controllers sent it.
type View struct {
	Version   uint32        `json:"version"`
	Synced    uint32        `json:"synced"`
	Chain     int           `json:"chain"`
	Idle      time.Duration `json:"idle_timeout"`
	List      ring.List     `json:"list"`
	Since     []uint32      `json:"since"`
	Cancelled []uint32      `json:"cancelled,omitempty"`
}

// Peer is a load balancer with a number.
type Peer struct {
	Number  uint16         `json:"number"`
	Name    string         `json:"name"`
	Address netip.AddrPort `json:"address"`
}

// live is what is known of the ring now, for who only looks.
type live struct {
	view, synced     uint32
	entries, answers uint64
	done             []uint32
	syncs            []replica.Progress
	expired          uint64
	uncopied         uint64
	problem          string // what never should be
	failed           time.Time
}

// New returns the replication of a load balancer that has just opened its tables. saved is that of an earlier process, nil: there is none.
func New(o Options, saved *State) (*Replication, error) {
	r := &Replication{Options: o, path: o.Tables.Path(), wake: make(chan struct{}, 1), copying: map[copyKey]bool{}, calls: make(chan func(context.Context), 1024),
		ended: map[ended]int{}, setReplicas: o.Tables.SetReplicas}
	r.live.Store(&live{})
	r.pings.next = rand.Uint32N(1 << 31) // so that answers for an earlier process, sent again, answer nothing
	entries, answers := r.path.ReplicaTables()
	period := r.path.ReplicaPeriod
	r.entries = newTable(entries, period, nil, r.failed)
	r.answers = newTable(answers, period, r.ends, r.failed)
	next := State{}
	if saved != nil {
		next = *saved
	}
	if next.Incarnation != 0 && next.Incarnation == r.path.Incarnation() && (next.View == nil || next.View.Version >= r.path.ViewVersion()) {
		r.state.Store(&next)
		return r, errors.Join(entries.Recover(), answers.Recover(), r.resume())
	}
	next = State{Address: next.Address}
	r.state.Store(&next)
	r.path.SetRing(false) // as far as is known
	return r, r.empty()
}

// State is what is to be saved.
func (r *Replication) State() *State { return r.state.Load() }

// empty forgets all entries, and begins another incarnation.
func (r *Replication) empty() error {
	if err := r.path.PublishView(&lb.ReplicaView{}); err != nil {
		return err
	}
	none := func(replicas.Entry) bool { return false }
	for _, t := range []*table{r.entries, r.answers} {
		if err := t.Recover(); err != nil {
			return err
		}
		if _, err := t.Table.Keep(none, t.gone); err != nil {
			return err
		}
	}
	next := State{Address: r.state.Load().Address, Incarnation: newIncarnation()}
	r.path.SetIncarnation(next.Incarnation)
	r.machine, r.done, r.unshown, r.entries.old = nil, nil, nil, nil
	clear(r.copying)
	r.state.Store(&next)
	return nil
}

func newIncarnation() uint64 {
	var text [8]byte
	cryptorand.Read(text[:]) // never fails
	return binary.LittleEndian.Uint64(text[:]) | 1
}

// resume goes on as an earlier process did.
func (r *Replication) resume() error {
	s := r.state.Load()
	if err := r.setPeers(s); err != nil {
		return err
	}
	if s.View != nil && s.Number != 0 {
		r.informed.Store(true)
		r.open(s)
		r.machine.Resume(s.Life)
		r.adopt(s.View)
	}
	return nil
}

// setPeers makes the data path take messages of these, and none of others.
func (r *Replication) setPeers(s *State) error {
	peers := plan.Replicas{Self: s.Number, Nodes: map[uint16]netip.Addr{}}
	for _, peer := range s.Peers {
		peers.Nodes[peer.Number] = peer.Address.Addr()
	}
	return r.setReplicas(peers)
}

// open starts the machine on the tables as they are.
func (r *Replication) open(s *State) {
	r.config = replica.DefaultConfig(s.View.Chain)
	r.config.DirectToHead, r.config.CopyEntries = true, copyEntries
	r.machine = replica.OpenNode(s.Number, &r.config, r.entries, r.answers, path{r}, r.path.ReplicaPeriod())
	r.period = time.Now()
}

// path has packets handled by the machine's view.
type path struct{ *Replication }

// Publish is as replica.Path says.
func (p path) Publish(v replica.View) {
	next := &lb.ReplicaView{Version: v.Version, HopLimit: p.config.HopLimit, List: v.List, Chains: v.Chains, Since: v.Since}
	if len(v.List) == 0 {
		next = &lb.ReplicaView{}
	}
	p.show(next)
}

// Period is as replica.Path says.
func (p path) Period(period uint32) { p.Replication.path.SetReplicaPeriod(period) }

// adopt takes a view as the ring of now.
func (r *Replication) adopt(v *View) []replica.Action {
	r.config.Chain, r.config.HopLimit = v.Chain, replica.DefaultConfig(v.Chain).HopLimit
	peers := &replica.Peers{List: v.List, Since: v.Since, Synced: v.Synced, Cancelled: v.Cancelled}
	actions := r.machine.Receive(replica.Message{Kind: replica.NewView, View: v.Version, Peers: peers})
	if view, synced := r.machine.View(); view == synced {
		r.done, r.entries.old = nil, nil
	}
	return actions
}

// keep makes a state durable, if it is another one.
func (r *Replication) keep(next *State) {
	before := r.state.Load()
	if same(before, next) {
		return
	}
	kept := *next
	r.state.Store(&kept)
	r.Save()
}

func same(a, b *State) bool {
	sameView := a.View == b.View || a.View != nil && b.View != nil && a.View.Version == b.View.Version && a.View.Synced == b.View.Synced && a.View.Idle == b.View.Idle
	return sameView && a.Address == b.Address && a.Incarnation == b.Incarnation && a.Number == b.Number && a.Life == b.Life && a.PassedOn == b.PassedOn && slices.Equal(a.Peers, b.Peers)
}

// Run does what time brings, until ctx ends.
func (r *Replication) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.ping(ctx) })
	running.Go(func() { r.serve(ctx) })
	running.Go(func() { r.call(ctx) })
	running.Go(func() { r.catchUp(ctx) })
	tick := time.NewTicker(tickPeriod)
	defer tick.Stop()
	var reported time.Time
	for {
		select {
		case now := <-tick.C:
			r.age(now)
			if now.Sub(reported) < reportPeriod {
				continue
			}
		case <-r.wake:
		case <-ctx.Done():
			return
		}
		reported = time.Now()
		r.report()
	}
}

// age begins deletion intervals, and repeats what was not answered.
func (r *Replication) age(now time.Time) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	retry := now.Sub(r.retried) >= retryPeriod
	if retry {
		r.retried = now
		r.again(now)
	}
	if r.machine == nil {
		return
	}
	if retry {
		r.do(r.machine.Retry())
	}
	if idle := r.state.Load().View.Idle; now.Sub(r.period) >= idle/time.Duration(r.config.Timeout) {
		r.period = now
		r.machine.NextPeriod()
		r.countEnded()
		r.counted = time.Time{}
	}
	if now.Sub(r.counted) >= countPeriod {
		r.counted = now
		next := *r.live.Load()
		next.entries, next.answers = uint64(r.entries.Count()), uint64(r.answers.Count())
		r.live.Store(&next)
	}
	r.observe()
}

// observe notes how things stand, and has it reported if that is news. The caller holds the lock.
func (r *Replication) observe() {
	before := r.live.Load()
	next := *before
	next.view, next.synced, next.syncs, next.done = r.path.ViewVersion(), 0, nil, slices.Clone(r.done)
	if r.machine != nil {
		_, next.synced = r.machine.View()
		next.syncs, next.expired, next.uncopied = r.machine.Syncs(), r.machine.Counters.Expired, r.machine.Counters.Uncopied
	}
	r.live.Store(&next)
	if next.view != before.view || next.synced != before.synced || !slices.Equal(next.done, before.done) {
		r.wakeReporter()
	}
}

// wakeReporter has a report sent soon.
func (r *Replication) wakeReporter() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// OwnAddress is where others reach this node; not valid: it has none yet. One that it has had stays, as long as it is there.
func (r *Replication) OwnAddress() netip.AddrPort {
	if r.Address.Addr().IsValid() {
		return r.Address
	}
	port := r.Address.Port()
	sources := r.Tables.Sources()
	slices.SortFunc(sources, func(a, b netip.Addr) int {
		if a.Is4() != b.Is4() {
			if a.Is4() {
				return -1
			}
			return 1
		}
		return a.Compare(b)
	})
	before := r.state.Load()
	if len(sources) == 0 || slices.Contains(sources, before.Address) {
		return netip.AddrPortFrom(before.Address, port)
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	next := *r.state.Load()
	next.Address = sources[0]
	r.keep(&next)
	return netip.AddrPortFrom(sources[0], port)
}

// report tells controllers how this node stands to the ring.
func (r *Replication) report() {
	now, state := r.live.Load(), r.state.Load()
	report := &ballastv1.ReplicaReport{Incarnation: state.Incarnation, View: now.view, Synced: now.synced, Done: now.done, Entries: now.entries,
		Answers: now.answers, Capacity: r.path.ReplicaCapacity(), Shares: true}
	if address := r.OwnAddress(); address.IsValid() {
		report.Address = address.String()
	}
	report.Heard, report.Silent = r.pings.heard()
	for _, sync := range now.syncs {
		report.Syncs = append(report.Syncs, &ballastv1.ReplicaProgress{Id: sync.ID, Permille: sync.Permille})
	}
	r.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Replica{Replica: report}})
}
