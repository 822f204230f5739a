package replica

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// Errors of Controller.Change.
var (
	ErrTooFew   = errors.New("as few nodes would be left as a chain has, or less: chains could not be repaired after one more fails")
	ErrNoCommon = errors.New("connections would lose all nodes that know them: wait until the last change is synced, or change less at once")
)

// Phase is what the controller is waiting for (figure 8).
type Phase uint8

// All phases.
const (
	Updating Phase = iota // for nodes to have the view
	Syncing               // for syncs
	Synced                // for nothing
)

// State is what a controller must not lose.
type State struct {
	Version   uint32      // of the current list; 0: there is none
	Synced    uint32      // newest version that was synced
	Lists     []ring.List // from Synced on; the last is the current one
	Since     []uint32    // by arc of the current list: the version since which its chain is what it is
	Ongoing   []ring.Sync // not known to be done
	Cancelled []uint32    // since Synced
	NextSync  uint32
	Lost      int // syncs so far that had no common node
}

func (s *State) list() ring.List {
	if len(s.Lists) == 0 {
		return nil
	}
	return s.Lists[len(s.Lists)-1]
}

// Change is what is done to a list at once.
type Change struct {
	Add     []uint16      // in the middle of the longest arcs; if there are no nodes yet, at equal distances
	AddAt   []ring.Member // at given positions; Life does not matter
	Remove  []uint16      // planned
	Fail    []uint16      // not planned: they seem to be dead. Never refused
	Restart []uint16      // seem to have lost what they knew. Never refused
	Level   bool          // move nodes towards equal distances, by one step
}

// Controller is the controller (4.3.3). Make one by NewController. Not safe for concurrent use.
type Controller struct {
	State State

	config  *Config
	syncing bool // all nodes have had the current view
	acked   map[uint16]acknowledged
	out     []Action
}

// acknowledged is what a node has said that it knows.
type acknowledged struct{ view, synced uint32 }

// NewController returns a controller that goes on from a state: the zero State, or one that was saved. Call Retry then.
func NewController(config *Config, saved State) *Controller {
	return &Controller{State: saved.clone(), config: config, acked: map[uint16]acknowledged{}}
}

// Phase returns what the controller is waiting for.
func (c *Controller) Phase() Phase {
	switch {
	case !c.syncing:
		return Updating
	case c.State.Synced < c.State.Version:
		return Syncing
	}
	return Synced
}

// List returns the current list.
func (c *Controller) List() ring.List { return c.State.list() }

// Change makes a new version of the list and begins to tell it. Actions are valid until the next call. When it refuses, nothing changes.
func (c *Controller) Change(change Change) ([]Action, error) {
	version := c.State.Version + 1
	next, err := change.apply(c.State.list(), version)
	if err != nil {
		return nil, err
	}
	lists := append(c.State.clone().Lists, next)
	planned := len(change.Add)+len(change.AddAt)+len(change.Remove) > 0 || change.Level
	if err := c.check(lists); planned && err != nil {
		return nil, fmt.Errorf("change nodes: %w", err)
	}
	before := c.State.list()
	fresh, cancelled := ring.ComputeSync(c.config.chains(), lists, c.State.Ongoing, c.State.NextSync)
	if !c.config.Rules.EveryShare {
		fresh = slices.CompactFunc(fresh, func(a, b ring.Sync) bool { return next.Arc(a.Range.Low) == next.Arc(b.Range.Low) })
	}
	c.State.Since = c.config.chains().Since(c.State.list(), c.State.Since, next, version)
	c.State.Version, c.State.Lists = version, lists
	c.State.NextSync += uint32(len(fresh))
	c.State.Cancelled = append(c.State.Cancelled, cancelled...)
	for _, id := range cancelled {
		c.end(id)
	}
	c.State.Ongoing = append(c.State.Ongoing, fresh...)
	for _, sync := range fresh {
		if sync.Lost {
			c.State.Lost++
		}
	}
	c.syncing = false
	c.out = append(c.out[:0], Action{Kind: Save})
	c.publish(before)
	if !c.config.Rules.WaitForViews {
		c.startSyncs()
	}
	return c.out, nil
}

// check returns why a planned change must not be made, or nil.
func (c *Controller) check(lists []ring.List) error {
	next := lists[len(lists)-1]
	if c.config.Rules.MoreNodesThanChain && len(next) <= c.config.Chain {
		return fmt.Errorf("%d nodes, chains of %d: %w", len(next), c.config.Chain, ErrTooFew)
	}
	// Without replicas there is nothing to keep.
	if c.config.Rules.KeepCommonNode && c.config.Chain > 1 && c.config.chains().Loses(lists) {
		return ErrNoCommon
	}
	return nil
}

// apply returns the list after a change.
func (change *Change) apply(list ring.List, version uint32) (ring.List, error) {
	for _, node := range slices.Concat(change.Remove, change.Fail, change.Restart) {
		if _, ok := list.Find(node); !ok {
			return nil, fmt.Errorf("change nodes: %d is not one of them", node)
		}
	}
	for _, node := range slices.Concat(change.Remove, change.Fail) {
		list = list.Remove(node)
	}
	for _, node := range change.Restart {
		if member, ok := list.Find(node); ok {
			member.Life = version
			list = list.Remove(node).AddAt(member)
		}
	}
	if len(list) == 0 && len(change.Add) > 0 {
		return ring.Even(change.Add, version), nil
	}
	for _, node := range change.Add {
		if _, ok := list.Find(node); ok || node == None {
			return nil, fmt.Errorf("change nodes: %d is there already, or no number of a node", node)
		}
		list = list.Add(node, version)
	}
	for _, member := range change.AddAt {
		taken := func(other ring.Member) bool { return other.Node == member.Node || other.At == member.At }
		if member.Node == None || slices.ContainsFunc(list, taken) {
			return nil, fmt.Errorf("change nodes: %d or its position is there already, or it is no number of a node", member.Node)
		}
		member.Life = version
		list = list.AddAt(member)
	}
	if change.Level {
		list, _ = list.Level()
	}
	return list, nil
}

// Receive takes a message from a node. What is returned is valid until the next call.
func (c *Controller) Receive(m Message) []Action {
	c.out = c.out[:0]
	switch m.Kind {
	case ViewAck:
		known := c.acked[m.From]
		c.acked[m.From] = acknowledged{max(known.view, m.View), max(known.synced, m.Synced)}
		if !c.syncing && c.allHaveView() {
			c.syncing = true
			c.startSyncs()
			c.finish()
		}
	case SyncDone:
		if c.end(m.Sync) && c.syncing {
			c.finish()
		}
	}
	return c.out
}

// Retry sends again what has not been answered. Call it every now and then, and once after a restart.
func (c *Controller) Retry() []Action {
	c.out = c.out[:0]
	for _, member := range c.State.list() {
		if known := c.acked[member.Node]; known.view < c.State.Version || known.synced < c.State.Synced {
			c.publishTo(member.Node)
		}
	}
	if c.syncing || !c.config.Rules.WaitForViews {
		c.startSyncs()
	}
	return c.out
}

func (c *Controller) allHaveView() bool {
	for _, member := range c.State.list() {
		if c.acked[member.Node].view < c.State.Version {
			return false
		}
	}
	return true
}

// finish ends a reconfiguration when all syncs are done.
func (c *Controller) finish() {
	if c.State.Synced == c.State.Version || len(c.State.Ongoing) > 0 {
		return
	}
	c.State.Synced = c.State.Version
	c.State.Lists = c.State.Lists[len(c.State.Lists)-1:]
	c.State.Cancelled = nil
	if c.config.EvenTo > 0 && c.config.Chain > 1 && len(c.List()) > c.config.Chain && c.List().Imbalance() > c.config.EvenTo {
		if _, err := c.Change(Change{Level: true}); err == nil {
			return
		}
	}
	c.out = append(c.out, Action{Kind: Save})
	c.publish(nil)
}

// end takes a sync from those that go on.
func (c *Controller) end(id uint32) bool {
	for i, sync := range c.State.Ongoing {
		if sync.ID == id {
			c.State.Ongoing = append(c.State.Ongoing[:i:i], c.State.Ongoing[i+1:]...)
			return true
		}
	}
	return false
}

// publish sends the view to all nodes, and to those of the list before, once: they learn that they are out.
func (c *Controller) publish(before ring.List) {
	for _, member := range c.State.list() {
		c.publishTo(member.Node)
	}
	for _, member := range before {
		if _, ok := c.State.list().Find(member.Node); !ok {
			c.publishTo(member.Node)
		}
	}
}

func (c *Controller) publishTo(node uint16) {
	peers := &Peers{List: c.State.list(), Since: c.State.Since, Synced: c.State.Synced, Cancelled: c.State.Cancelled}
	c.send(Message{Kind: NewView, To: node, Peers: peers})
}

func (c *Controller) startSyncs() {
	for _, sync := range c.State.Ongoing {
		c.send(Message{Kind: StartSync, To: sync.Node, Sync: sync.ID, Range: sync.Range, Places: sync.To})
	}
}

func (c *Controller) send(m Message) {
	m.From, m.View = None, c.State.Version
	c.out = append(c.out, Action{Kind: Send, Message: m})
}
