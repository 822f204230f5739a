// Package replicas keeps the ring of load balancers that hold the replicated table. One controller of several decides
// who is on it; all tell nodes what is in the store.
package replicas

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants.
const (
	period    = 200 * time.Millisecond // of looking at who has gone silent
	electedBy = "ring"                 // the name that the controller which decides is elected by, as for a service
)

// Options are what a manager needs.
type Options struct {
	Name   string // of this controller
	Store  store.Store
	Mirror *desired.Mirror
	Writer *desired.Writer
	// Leads reports whether this controller leads what has a name, LeaderOf returns who does.
	Leads    func(name string) bool
	LeaderOf func(name string) string
	Hub      *hub.Hub
	Log      *slog.Logger
}

// Manager decides who is on the ring, where this controller leads it. It is safe for concurrent use.
type Manager struct {
	o    Options
	wake desired.Wake // nodes have said something

	mutex    sync.Mutex
	who      *replica.Membership // nil: this controller does not decide
	revision uint64              // of the document that it goes by
}

// New returns a manager.
func New(o Options) *Manager { return &Manager{o: o, wake: desired.NewWake()} }

// Wake is called when nodes have said something.
func (m *Manager) Wake() { m.wake.Call() }

// Run publishes the ring to nodes, and decides who is on it where this controller leads it, until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	desired.Loop{Wake: m.wake, Period: period, Step: m.step,
		Failed: func(err error) { m.o.Log.Error("the ring of load balancers stays as it is", "error", err) }}.Run(ctx, m.o.Mirror)
}

// step publishes what is stored, and stores what follows from what nodes have said. They are told that when the store
// has delivered it.
func (m *Manager) step(ctx context.Context, now *documents.Snapshot) error {
	ring, starts, err := m.decide(now)
	m.publish(now, starts)
	if err != nil || ring == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, desired.WriteTimeout)
	defer cancel()
	revision, err := m.o.Store.Commit(ctx, []store.Document{*ring})
	if err != nil {
		m.mutex.Lock()
		m.who = nil // what was decided is not so
		m.mutex.Unlock()
		if errors.Is(err, store.ErrConflict) {
			return nil // somebody was faster
		}
		return err
	}
	m.mutex.Lock()
	m.revision = revision
	m.mutex.Unlock()
	m.o.Mirror.Await(ctx, revision)
	return nil
}

// decide returns the document that is to be stored, nil: it stays; and which syncs nodes are to lead.
func (m *Manager) decide(now *documents.Snapshot) (document *store.Document, starts map[string][]*ballastv1.ReplicaSync, err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if !m.o.Leads(electedBy) {
		m.who = nil
		return nil, nil, nil
	}
	switch {
	case m.who == nil:
		m.who = replica.NewMembership(now.Ring, time.Now())
	case m.revision != now.Revisions[documents.RingKey]:
		m.who.Reload(now.Ring)
	}
	m.revision = now.Revisions[documents.RingKey]
	wanted, needed := now.Replicas()
	before := now.Ring.Current()
	if m.who.Step(time.Now(), replica.Wanted{On: needed, Chain: int(wanted.Chain)}, m.o.Hub.Nodes.ReplicaReports()) {
		next, failed := now.Put(documents.RingKey, m.who.Members)
		document, err = &next, failed
		m.logChange(&now.Ring, &m.who.Members)
	}
	starts = map[string][]*ballastv1.ReplicaSync{}
	if slices.Equal(before, m.who.Members.Current()) { // else nodes do not know the list that they are for
		for number, syncs := range m.who.Starts() {
			name := nameOf(&m.who.Members, number)
			for _, sync := range syncs {
				starts[name] = append(starts[name], &ballastv1.ReplicaSync{Id: sync.ID, Low: uint32(sync.Range.Low), High: uint32(sync.Range.High),
					First: uint32(sync.To.First), After: uint32(sync.To.After)})
			}
		}
	}
	return document, starts, err
}

// logChange says what becomes of the ring.
func (m *Manager) logChange(before, after *replica.Members) {
	if before.Ring.Version == after.Ring.Version {
		return
	}
	was, is := before.Current(), after.Current()
	var arrived, gone, again []string
	for _, member := range is {
		if old, on := was.Find(member.Node); !on {
			arrived = append(arrived, nameOf(after, member.Node))
		} else if old.Life != member.Life {
			again = append(again, nameOf(after, member.Node))
		}
	}
	for _, member := range was {
		if _, on := is.Find(member.Node); !on {
			gone = append(gone, nameOf(after, member.Node))
		}
	}
	args := []any{"version", after.Ring.Version, "load balancers", len(is)}
	for _, list := range []struct {
		what  string
		names []string
	}{{"joined", arrived}, {"left", gone}, {"lost its entries", again}} {
		if len(list.names) > 0 {
			args = append(args, list.what, list.names)
		}
	}
	if m.o.Log.Info("the ring of load balancers changes", args...); after.Ring.Lost > before.Ring.Lost {
		m.o.Log.Error("all load balancers of a chain were lost at once: its connections may move to other servers", "ranges", after.Ring.Lost-before.Ring.Lost)
	}
}

// publish has nodes told what is in the store.
func (m *Manager) publish(now *documents.Snapshot, starts map[string][]*ballastv1.ReplicaSync) {
	members := &now.Ring
	if len(members.Nodes) == 0 {
		return
	}
	wanted, _ := now.Replicas()
	view := &ballastv1.ReplicaView{Revision: now.Revisions[documents.RingKey], Version: members.Ring.Version, Synced: members.Ring.Synced, Chain: uint32(members.Chain),
		IdleTimeout: durationpb.New(time.Duration(wanted.IdleTimeout)), Since: members.Ring.Since, Cancelled: members.Ring.Cancelled}
	list := members.Current()
	for i := range members.Nodes {
		node := &members.Nodes[i]
		sent := &ballastv1.ReplicaNode{Number: uint32(node.Number), Name: node.Name, Address: node.Address.String(), Incarnation: node.Incarnation}
		if member, on := list.Find(node.Number); on {
			sent.OnRing, sent.Life, sent.Position = true, member.Life, uint32(member.At)
		}
		view.Nodes = append(view.Nodes, sent)
	}
	m.o.Hub.Topics.SetReplicas(view, starts)
}
