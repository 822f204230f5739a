// What a ring is that controllers tell, and how it becomes the one that this node goes by.
package replication

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/model"
)

// ringView is a message of a controller, once it was found to make sense.
type ringView struct {
	view         View
	peers        []Peer
	incarnations map[uint16]uint64
	starts       []ring.Sync
	passedOn     string // load balancer; empty: a controller sent it
}

func (t *ringView) named(name string) *Peer {
	for i := range t.peers {
		if t.peers[i].Name == name {
			return &t.peers[i]
		}
	}
	return nil
}

func (t *ringView) isOn(number uint16) bool {
	_, on := t.view.List.Find(number)
	return on
}

// readView refuses what the data path could not work with.
func readView(m *ballastv1.ReplicaView) (*ringView, error) {
	t := &ringView{view: View{Version: m.Version, Synced: m.Synced, Chain: int(m.Chain), Idle: m.IdleTimeout.AsDuration(), Since: m.Since, Cancelled: m.Cancelled},
		incarnations: map[uint16]uint64{}}
	for _, n := range m.Nodes {
		address, err := netip.ParseAddrPort(n.Address)
		if err != nil {
			return nil, fmt.Errorf("address of %s: %w", n.Name, err)
		}
		if n.Number == 0 || n.Number > replica.NodesMax || t.incarnations[uint16(n.Number)] != 0 || t.named(n.Name) != nil {
			return nil, fmt.Errorf("number %d of %s is out of range, or it or the name is there twice", n.Number, n.Name)
		}
		number := uint16(n.Number)
		t.peers = append(t.peers, Peer{number, n.Name, address})
		t.incarnations[number] = n.Incarnation
		if n.OnRing {
			t.view.List = append(t.view.List, ring.Member{Node: number, Life: n.Life, At: ring.Position(n.Position)})
		}
	}
	slices.SortFunc(t.view.List, func(a, b ring.Member) int { return int(int64(a.At) - int64(b.At)) })
	for i := range t.view.List {
		if i > 0 && t.view.List[i].At == t.view.List[i-1].At {
			return nil, fmt.Errorf("two load balancers are at position %d", t.view.List[i].At)
		}
	}
	for _, s := range slices.Concat(m.Starts, m.Shares) {
		if s.First > s.After || s.After > m.Chain {
			return nil, fmt.Errorf("a copy to places %d to %d of chains of %d load balancers", s.First, s.After, m.Chain)
		}
		t.starts = append(t.starts, ring.Sync{ID: s.Id, Range: ring.Range{Low: ring.Position(s.Low), High: ring.Position(s.High)},
			To: ring.Places{First: uint8(s.First), After: uint8(s.After)}})
	}
	switch idle := model.Duration(t.view.Idle); {
	case m.Version == 0:
		return t, nil
	case len(t.view.List) == 0:
		return nil, errors.New("a ring without load balancers")
	case len(t.view.Since) != len(t.view.List):
		return nil, fmt.Errorf("%d versions of %d chains", len(t.view.Since), len(t.view.List))
	case t.view.Chain < 1 || t.view.Chain > model.MaxChain:
		return nil, fmt.Errorf("chains of %d load balancers", t.view.Chain)
	case idle < model.MinReplicaIdleTimeout || idle > model.MaxReplicaIdleTimeout:
		return nil, fmt.Errorf("an idle timeout of %v", time.Duration(idle))
	}
	return t, nil
}

// OnView takes what a controller tells of the ring.
func (r *Replication) OnView(controller string, message *ballastv1.ReplicaView) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if err := r.take(message, ""); err != nil {
		if r.untaken == message {
			r.failed(err)
		}
		r.Log.Error("what a controller says of the ring is not taken", "controller", controller, "version", message.Version, "error", err)
	}
	r.observe()
}

// take takes a ring that a controller tells, or that a load balancer has passed on. The caller holds the lock.
func (r *Replication) take(message *ballastv1.ReplicaView, passedOn string) error {
	received, err := readView(message)
	if err != nil {
		return err
	}
	received.passedOn = passedOn
	before := r.state.Load()
	version := uint32(0)
	if before.View != nil {
		version = before.View.Version
	}
	if received.view.Version < version || received.view.Version == version && version != 0 && (message.Revision < r.revision || passedOn != "") {
		return nil // of one that lags behind
	}
	if r.untaken != nil && received.view.Version < r.untaken.Version {
		return nil // as well
	}
	failed := r.untaken != nil
	if passedOn == "" { // else it is asked for again
		r.untaken = message
	}
	if err := r.follow(received, message); err != nil {
		return err
	}
	if r.untaken = nil; failed && r.unshown == nil {
		r.recovered()
	}
	return nil
}

// follow carries out what a controller tells.
func (r *Replication) follow(received *ringView, message *ballastv1.ReplicaView) error {
	before := r.state.Load()
	r.path.SetRing(received.view.Version != 0)
	me := received.named(r.Name)
	if me == nil { // it does not know us yet
		if received.view.Version == 0 {
			r.informed.Store(true)
		} else if r.nameless.Load() == nil {
			now := time.Now()
			r.nameless.Store(&now)
		}
		return nil
	}
	r.nameless.Store(nil)
	next := *before
	if before.Number != 0 && before.Number != me.Number {
		r.Log.Warn("this load balancer has another number on the ring: it starts with no entries", "before", before.Number, "now", me.Number)
		if err := r.empty(); err != nil {
			return err
		}
		next = *r.state.Load()
	}
	next.Number, next.Peers = me.Number, received.peers
	if !slices.Equal(next.Peers, before.Peers) || next.Number != before.Number {
		if err := r.setPeers(&next); err != nil {
			return err
		}
	}
	r.informed.Store(true)
	// Who is on the ring with other entries than ours takes no part until that is known: see replica.NewNode.
	if waits := received.view.Version == 0 || received.isOn(me.Number) && received.incarnations[me.Number] != next.Incarnation; waits {
		r.keep(&next)
		return nil
	}
	next.View, next.PassedOn, r.signed = &received.view, received.passedOn, message.Signed
	r.keep(&next)
	if r.machine == nil {
		r.open(&next)
	}
	r.revision = message.Revision
	r.do(r.adopt(next.View))
	for _, sync := range received.starts {
		r.do(r.machine.Receive(replica.Message{Kind: replica.StartSync, View: next.View.Version, Sync: sync.ID, Range: sync.Range, Places: sync.To}))
	}
	next.Life = 0
	if member, on := received.view.List.Find(me.Number); on {
		next.Life = member.Life
	}
	r.keep(&next)
	return nil
}
