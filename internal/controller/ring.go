// The ring of load balancers that keep the replicated table. One controller of several decides; all tell nodes what is in the store.
package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants.
const (
	ringPeriod = 200 * time.Millisecond // of looking at who has gone silent
	ringName   = "ring"                 // that its leader is elected by, as for a service
)

// ringKeeper decides who is on the ring, where this controller leads it.
type ringKeeper struct {
	wake chan struct{} // nodes have said something

	mutex    sync.Mutex
	who      *replica.Membership // nil: this controller does not decide
	revision uint64              // of the document that it goes by
}

// keepRing tells nodes of the ring, and decides who is on it where this controller leads it, until ctx ends.
func (c *controller) keepRing(ctx context.Context) {
	tick := time.NewTicker(ringPeriod)
	defer tick.Stop()
	said := ""
	for {
		now, changed := c.mirror.Next()
		if now != nil {
			err := c.ringNow(ctx, now)
			if said != fmt.Sprint(err) && err != nil && ctx.Err() == nil {
				c.log.Error("the ring of load balancers stays as it is", "error", err)
			}
			said = fmt.Sprint(err)
		}
		select {
		case <-changed:
		case <-c.ring.wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// ringWake is called when nodes have said something.
func (c *controller) ringWake() {
	select {
	case c.ring.wake <- struct{}{}:
	default:
	}
}

// ringNow tells what is stored, and stores what follows from what nodes have said. They are told that when the store has delivered it.
func (c *controller) ringNow(ctx context.Context, now *documents.Snapshot) error {
	value, starts, err := c.decideRing(now)
	c.tellRing(now, starts)
	if err != nil || value == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, desired.WriteTimeout)
	defer cancel()
	revision, err := c.store.Commit(ctx, []store.Document{{Key: documents.RingKey, Value: value, Revision: now.Revisions[documents.RingKey]}})
	if err != nil {
		c.ring.mutex.Lock()
		c.ring.who = nil // what was decided is not so
		c.ring.mutex.Unlock()
		if errors.Is(err, store.ErrConflict) {
			return nil // somebody was faster
		}
		return err
	}
	c.ring.mutex.Lock()
	c.ring.revision = revision
	c.ring.mutex.Unlock()
	c.mirror.Await(ctx, revision)
	return nil
}

// decideRing returns the document that is to be stored, nil: it stays; and which syncs nodes are to lead.
func (c *controller) decideRing(now *documents.Snapshot) (value []byte, starts map[string][]*ballastv1.ReplicaSync, err error) {
	k := &c.ring
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if !c.leadsService(ringName) {
		k.who = nil
		return nil, nil, nil
	}
	switch {
	case k.who == nil:
		k.who = replica.NewMembership(now.Ring, time.Now())
	case k.revision != now.Revisions[documents.RingKey]:
		k.who.Reload(now.Ring)
	}
	k.revision = now.Revisions[documents.RingKey]
	wanted, needed := now.Replicas()
	before := now.Ring.Current()
	if k.who.Step(time.Now(), replica.Wanted{On: needed, Chain: int(wanted.Chain)}, c.hub.Nodes.ReplicaReports()) {
		value, err = json.Marshal(k.who.Members)
		c.logRing(&now.Ring, &k.who.Members)
	}
	starts = map[string][]*ballastv1.ReplicaSync{}
	if slices.Equal(before, k.who.Members.Current()) { // else nodes do not know the list that they are for
		for number, syncs := range k.who.Starts() {
			name := nameOf(&k.who.Members, number)
			for _, sync := range syncs {
				starts[name] = append(starts[name], &ballastv1.ReplicaSync{Id: sync.ID, Low: uint32(sync.Range.Low), High: uint32(sync.Range.High)})
			}
		}
	}
	return value, starts, err
}

// logRing says what becomes of the ring.
func (c *controller) logRing(before, after *replica.Members) {
	if before.Ring.Version == after.Ring.Version {
		return
	}
	was, is := before.Current(), after.Current()
	var came, gone, again []string
	for _, member := range is {
		if old, on := was.Find(member.Node); !on {
			came = append(came, nameOf(after, member.Node))
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
	}{{"joined", came}, {"left", gone}, {"lost its entries", again}} {
		if len(list.names) > 0 {
			args = append(args, list.what, list.names)
		}
	}
	if c.log.Info("the ring of load balancers changes", args...); after.Ring.Lost > before.Ring.Lost {
		c.log.Error("all load balancers of a chain were lost at once: its connections may move to other servers", "ranges", after.Ring.Lost-before.Ring.Lost)
	}
}

func nameOf(members *replica.Members, number uint16) string {
	for i := range members.Nodes {
		if members.Nodes[i].Number == number {
			return members.Nodes[i].Name
		}
	}
	return fmt.Sprint("number ", number)
}

// tellRing has nodes told what is in the store.
func (c *controller) tellRing(now *documents.Snapshot, starts map[string][]*ballastv1.ReplicaSync) {
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
		told := &ballastv1.ReplicaNode{Number: uint32(node.Number), Name: node.Name, Address: node.Address.String(), Incarnation: node.Incarnation}
		if member, on := list.Find(node.Number); on {
			told.OnRing, told.Life, told.Position = true, member.Life, uint32(member.At)
		}
		view.Nodes = append(view.Nodes, told)
	}
	c.hub.Topics.SetReplicas(view, starts)
}

// DrainReplica keeps a load balancer off the ring, or lets it on again; see api.Desired.
func (f fleetOf) DrainReplica(ctx context.Context, name string, off bool) (changes []string, revision uint64, err error) {
	return f.writer.Record(ctx, func(now *documents.Snapshot) (changes []string, wanted []store.Document, err error) {
		members := now.Ring
		if members.Node(name) == nil {
			return nil, nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no load balancer %q has come to the ring: see `ballast ctl replica list`", name))
		}
		if slices.Contains(members.Drained, name) == off {
			return nil, nil, nil
		}
		if err := mayLeave(&members, name); off && err != nil {
			return nil, nil, err
		}
		members.Drained = slices.DeleteFunc(slices.Clone(members.Drained), func(other string) bool { return other == name })
		what := "comes onto the ring again"
		if off {
			members.Drained, what = append(members.Drained, name), "leaves the ring"
			slices.Sort(members.Drained)
		}
		document, err := now.Put(documents.RingKey, members)
		return []string{fmt.Sprintf("replicas: %s %s", name, what)}, []store.Document{document}, err
	})
}

// mayLeave refuses what would leave chains that lose their entries when one more load balancer fails.
func mayLeave(members *replica.Members, name string) error {
	stay, list := 0, members.Current()
	if _, on := list.Find(members.Node(name).Number); !on {
		return nil
	}
	for _, member := range list {
		if other := nameOf(members, member.Node); other != name && !slices.Contains(members.Drained, other) {
			stay++
		}
	}
	if stay > members.Chain {
		return nil
	}
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%d load balancers would stay on the ring: chains of %d need %d, so that one may fail: add or undrain one first",
		stay, members.Chain, members.Chain+1))
}

// forgetReplica gives up the number of a load balancer that is not on the ring.
func (c *controller) forgetReplica(ctx context.Context, name string) error {
	return c.writer.Update(ctx, func(now *documents.Snapshot) ([]store.Document, error) {
		members := now.Ring
		node := members.Node(name)
		if node == nil || slices.ContainsFunc(members.Ring.Lists, func(list ring.List) bool { _, on := list.Find(node.Number); return on }) {
			return nil, nil
		}
		members.Nodes = slices.DeleteFunc(slices.Clone(members.Nodes), func(n replica.PeerNode) bool { return n.Name == name })
		members.Drained = slices.DeleteFunc(slices.Clone(members.Drained), func(other string) bool { return other == name })
		document, err := now.Put(documents.RingKey, members)
		return []store.Document{document}, err
	})
}

// Replicas tells of the ring; see api.Desired.
func (f fleetOf) Replicas(context.Context) (*ballastv1.ListReplicasResponse, error) {
	now := f.mirror.Now()
	if now == nil {
		return nil, desired.ErrUnknown
	}
	wanted, needed := now.Replicas()
	members := &now.Ring
	answer := &ballastv1.ListReplicasResponse{Needed: needed, Replicas: api.ReplicasToProto(&wanted), Version: members.Ring.Version,
		Synced: members.Ring.Synced, Lost: uint32(members.Ring.Lost), Phase: "none"}
	f.mutex.Lock()
	answer.Leader = f.leads.leaderOf(ringName)
	f.mutex.Unlock()
	switch list := members.Current(); {
	case len(list) == 0:
	case members.Ring.Synced == members.Ring.Version:
		answer.Phase = "synced"
	case f.allHave(members):
		answer.Phase = "syncing"
	default:
		answer.Phase = "updating"
	}
	f.ring.mutex.Lock()
	if who := f.ring.who; who != nil {
		answer.Problems = slices.Clone(who.Blocked())
	}
	f.ring.mutex.Unlock()
	if answer.Leader != f.name && answer.Needed {
		answer.Problems = append(answer.Problems, fmt.Sprintf("controller %s decides, and knows why: ask it if something is not as it should be", answer.Leader))
	}
	progress := map[uint32]uint32{}
	for i := range members.Nodes {
		answer.Nodes = append(answer.Nodes, f.replicaStatus(members, &members.Nodes[i], progress))
	}
	for _, sync := range members.Ring.Ongoing {
		status := &ballastv1.ReplicaSyncStatus{Id: sync.ID, Node: nameOf(members, sync.Node), Permille: progress[sync.ID]}
		for _, member := range members.Chains().At(members.Current(), sync.Range.Low) {
			if member.Node != sync.Node {
				status.To = append(status.To, nameOf(members, member.Node))
			}
		}
		answer.Syncs = append(answer.Syncs, status)
	}
	return answer, nil
}

// allHave reports whether all nodes of the ring have its newest version.
func (c *controller) allHave(members *replica.Members) bool {
	for _, member := range members.Current() {
		if report, _ := c.hub.Nodes.ReplicaReport(nameOf(members, member.Node)); report == nil || report.View != members.Ring.Version {
			return false
		}
	}
	return true
}

// silentFor is after what time without a word a node is called lost.
const silentFor = 5 * time.Second

func (c *controller) replicaStatus(members *replica.Members, node *replica.PeerNode, progress map[uint32]uint32) *ballastv1.ReplicaStatus {
	list := members.Current()
	member, on := list.Find(node.Number)
	drained := slices.Contains(members.Drained, node.Name)
	status := &ballastv1.ReplicaStatus{Name: node.Name, Number: uint32(node.Number), Address: node.Address.String(), State: "off"}
	report, age := c.hub.Nodes.ReplicaReport(node.Name)
	switch {
	case on && drained:
		status.State = "draining"
	case drained:
		status.State = "drained"
	case report == nil || age > silentFor:
		status.State = "lost"
	case on:
		status.State = "on"
	}
	if on {
		status.Share, status.Position = list.Share(node.Number), uint32(member.At)
		for _, other := range members.Chains().At(list, member.At) {
			status.Chain = append(status.Chain, nameOf(members, other.Node))
		}
	}
	if report != nil {
		status.Version, status.Entries, status.Answers, status.Capacity = report.View, report.Entries, report.Answers, report.Capacity
		for _, number := range report.Silent {
			status.Silent = append(status.Silent, nameOf(members, uint16(number)))
		}
		for _, sync := range report.Syncs {
			progress[sync.Id] = sync.Permille
		}
	}
	return status
}
