// Package node decides what a load-balancer node should do: it keeps the desired state, merges the file's edits and
// the changes made through ctl, and remembers servers that were removed while connections to them may still live.
//
// It is pure: time is an argument, nothing here does I/O.
package node

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/change"
	"github.com/ballast-lb/ballast/internal/model"
)

// Removed is a server that has left the configuration.
type Removed struct {
	Service  string       `json:"service"`
	Server   model.Server `json:"server"`
	Since    time.Time    `json:"since"`     // when it left
	LastSeen time.Time    `json:"last_seen"` // of a packet for it
	// Forgotten servers get no packets any more; the entry only keeps their id from being given away.
	Forgotten bool `json:"forgotten"`

	packets uint64 // when last looked at
}

// Timing bounds how long removed servers are remembered.
type Timing struct {
	Linger     time.Duration // without a packet, until a removed server's connections count as ended
	Quarantine time.Duration // after that, until its id may be given to another server
}

// DefaultTiming keeps connections that are silent for a day.
var DefaultTiming = Timing{Linger: 24 * time.Hour, Quarantine: 24 * time.Hour}

// Node is the desired state of one node. The zero value knows nothing yet.
type Node struct {
	Base    model.Fleet // the file as last applied
	Running model.Fleet // what is wanted now: the file and what ctl changed since
	Removed []Removed
	// Past holds, by service, the shares that its table was made of before, oldest first: a node that has lost its tables makes
	// their history from it (second chance).
	Past map[string][][]model.Share
}

// pastDepth is how many earlier versions of a table are remembered; a slot keeps history.Depth distinct owners of them.
const pastDepth = 8

// EditFile takes the file as it is now. Only what differs from the file as it was is applied: unchanged lines never undo what
// ctl changed, and an edit overrides it. It returns what changed, one line each.
func (n *Node) EditFile(file model.Fleet, now time.Time) ([]string, error) {
	merged, changes := change.Merge(n.Base, file, n.Running)
	if _, err := n.become(merged, now); err != nil {
		return nil, err
	}
	n.Base = file.Clone()
	return changes, nil
}

// Change lets edit alter the desired state, as ctl does.
func (n *Node) Change(now time.Time, edit func(*model.Fleet) error) ([]string, error) {
	next := n.Running.Clone()
	if err := edit(&next); err != nil {
		return nil, err
	}
	return n.become(next, now)
}

// Differences tells how the desired state differs from the file.
func (n *Node) Differences() []string { return change.Diff(n.Base, n.Running) }

func (n *Node) become(next model.Fleet, now time.Time) ([]string, error) {
	next.ApplyDefaults()
	if err := next.Validate(); err != nil {
		return nil, err
	}
	before := n.renamed(&next)
	if err := errors.Join(before.checkIDs(&next), before.checkCookies(&next)); err != nil {
		return nil, err
	}
	changes := change.Diff(n.Running, next)
	n.Removed, n.Past = before.removedAfter(&next, now), before.pastAfter(&next)
	n.Running = next
	return changes, nil
}

// byName finds services: Fleet.Service would look at all of them for each.
func byName(f *model.Fleet) map[string]*model.Service {
	found := make(map[string]*model.Service, len(f.Services))
	for i := range f.Services {
		found[f.Services[i].Name] = &f.Services[i]
	}
	return found
}

// renamed returns the node as if services had always had the names that they have in next: one whose name is gone is the new one that takes
// over its connections.
func (n *Node) renamed(next *model.Fleet) *Node {
	before, after, names := byName(&n.Running), byName(next), map[string]string{}
	for i := range next.Services {
		added := &next.Services[i]
		if before[added.Name] != nil {
			continue
		}
		for j := range n.Running.Services {
			gone := &n.Running.Services[j]
			if after[gone.Name] == nil && names[gone.Name] == "" && gone.VIP == added.VIP && takesOver(gone, added) {
				names[gone.Name] = added.Name
				break
			}
		}
	}
	if len(names) == 0 {
		return n
	}
	as := func(name string) string { return cmp.Or(names[name], name) }
	to := &Node{Running: n.Running.Clone(), Removed: slices.Clone(n.Removed), Past: map[string][][]model.Share{}}
	for i := range to.Running.Services {
		to.Running.Services[i].Name = as(to.Running.Services[i].Name)
	}
	for i := range to.Removed {
		to.Removed[i].Service = as(to.Removed[i].Service)
	}
	for name, versions := range n.Past {
		to.Past[as(name)] = versions
	}
	return to
}

// checkIDs refuses an id that connections of another server may still carry.
func (n *Node) checkIDs(next *model.Fleet) error {
	type owner struct {
		service string
		id      uint16
	}
	owners := map[owner]*Removed{}
	for i := range n.Running.Services {
		s := &n.Running.Services[i]
		for j := range s.Servers {
			owners[owner{s.Name, s.Servers[j].ID}] = &Removed{Server: s.Servers[j]}
		}
	}
	for i := range n.Removed {
		owners[owner{n.Removed[i].Service, n.Removed[i].Server.ID}] = &n.Removed[i]
	}
	for i := range next.Services {
		s := &next.Services[i]
		if !s.Affinity.KeepsIDs() {
			continue
		}
		for j := range s.Servers {
			if before := owners[owner{s.Name, s.Servers[j].ID}]; before != nil && !same(&before.Server, &s.Servers[j]) {
				return n.idInUse(s, &s.Servers[j], before)
			}
		}
	}
	return nil
}

// checkCookies refuses what would make the cookies of living connections unreadable without a word.
func (n *Node) checkCookies(next *model.Fleet) error {
	before := &n.Running.Keys
	if before.Placement != [16]byte{} && before.Placement != next.Keys.Placement {
		return &model.Invalid{Path: "keys.placement", Problem: "it has changed, and connections without cookies would be looked for elsewhere",
			Remedy: "put the old one back; to start afresh, detach and remove the state file"}
	}
	for epoch, key := range next.Keys.Cookie {
		if old, known := before.Cookie[epoch]; known && old != key {
			return &model.Invalid{Path: fmt.Sprintf("keys.cookie.%d", epoch), Problem: "the key of an epoch in use has changed",
				Remedy: "put the old one back and add the new key as the next epoch"}
		}
	}
	running := map[netip.Addr][]*model.Service{}
	for i := range n.Running.Services {
		s := &n.Running.Services[i]
		running[s.VIP] = append(running[s.VIP], s)
	}
	for i := range next.Services {
		for _, old := range running[next.Services[i].VIP] {
			if !takesOver(old, &next.Services[i]) {
				continue
			}
			if err := n.checkLayout(old, &next.Services[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// takesOver reports whether connections of before would be read as those of after, at the same VIP: it is the same service, or one under
// another name.
func takesOver(before, after *model.Service) bool {
	shared := func(port uint16) bool { return slices.Contains(before.Ports, port) }
	return before.Name == after.Name || before.Protocol == after.Protocol && slices.ContainsFunc(after.Ports, shared)
}

func (n *Node) idInUse(s *model.Service, server *model.Server, r *Removed) error {
	return &model.Invalid{
		Path:    "services." + s.Name + ".servers." + server.Name + ".id",
		Problem: fmt.Sprintf("id %d is that of %s (%s), whose connections may still live", server.ID, r.Server.Name, r.Server.Address),
		Remedy:  fmt.Sprintf("use id %d; once the old one is removed, `ballast ctl server forget` gives its id up", n.NextID(s)),
	}
}

// NextID returns an id of the service that no server has, or had lately; 0: none is left.
func (n *Node) NextID(s *model.Service) uint16 {
	with := s.Clone()
	for _, r := range n.Removed {
		if r.Service == s.Name {
			with.Servers = append(with.Servers, r.Server)
		}
	}
	id, _ := with.NextFreeID()
	return id
}

func same(a, b *model.Server) bool { return a.Address == b.Address && a.Port == b.Port }

// removedAfter returns the removed servers once next is wanted: those that left just now, less those that came back.
func (n *Node) removedAfter(next *model.Fleet, now time.Time) []Removed {
	wanted := byName(next)
	removed := slices.DeleteFunc(slices.Clone(n.Removed), func(r Removed) bool {
		s := wanted[r.Service]
		return s == nil || !s.Affinity.KeepsIDs() || byID(s, r.Server.ID) != nil
	})
	for i := range n.Running.Services {
		before := &n.Running.Services[i]
		after := wanted[before.Name]
		if after == nil || !after.Affinity.KeepsIDs() || !before.Affinity.KeepsIDs() {
			continue
		}
		for _, server := range before.Servers {
			if byID(after, server.ID) == nil {
				removed = append(removed, Removed{Service: before.Name, Server: server, Since: now, LastSeen: now})
			}
		}
	}
	return removed
}

// pastAfter returns the past of the services of next: what runs now has passed where it differs.
func (n *Node) pastAfter(next *model.Fleet) map[string][][]model.Share {
	past, running := map[string][][]model.Share{}, byName(&n.Running)
	for i := range next.Services {
		after := &next.Services[i]
		versions := n.Past[after.Name]
		if before := running[after.Name]; before != nil && !slices.Equal(before.Shares(), after.Shares()) {
			versions = append(slices.Clone(versions), before.Shares())
			versions = versions[max(0, len(versions)-pastDepth):]
		}
		if len(versions) > 0 {
			past[after.Name] = versions
		}
	}
	return past
}

func byID(s *model.Service, id uint16) *model.Server {
	for i := range s.Servers {
		if s.Servers[i].ID == id {
			return &s.Servers[i]
		}
	}
	return nil
}

// Lingering returns the removed servers of a service that still get the packets of their connections.
func (n *Node) Lingering(service string) (servers []model.Server) {
	for _, r := range n.Removed {
		if r.Service == service && !r.Forgotten {
			servers = append(servers, r.Server)
		}
	}
	return servers
}

// Age looks at what removed servers were sent in all, and forgets those that have been silent for long. It reports whether the
// tables need an update.
func (n *Node) Age(now time.Time, timing Timing, packets func(service string, id uint16) uint64) (changed bool) {
	n.Removed = slices.DeleteFunc(n.Removed, func(r Removed) bool {
		return r.Forgotten && now.Sub(r.LastSeen) > timing.Linger+timing.Quarantine
	})
	for i := range n.Removed {
		r := &n.Removed[i]
		if r.Forgotten {
			continue
		}
		if count := packets(r.Service, r.Server.ID); count != r.packets {
			r.packets, r.LastSeen = count, now
		}
		if now.Sub(r.LastSeen) > timing.Linger {
			r.Forgotten, changed = true, true
		}
	}
	return changed
}

// Remember returns removed servers with what an earlier look at them (Age) found out: who keeps them elsewhere writes that down seldom.
func Remember(removed, looked []Removed) []Removed {
	type key struct {
		service string
		id      uint16
		since   int64
	}
	of := func(r *Removed) key { return key{r.Service, r.Server.ID, r.Since.UnixNano()} }
	known := make(map[key]*Removed, len(looked))
	for i := range looked {
		known[of(&looked[i])] = &looked[i]
	}
	remembered := slices.Clone(removed)
	for i := range remembered {
		r := &remembered[i]
		if before := known[of(r)]; before != nil {
			r.packets = before.packets
			if before.LastSeen.After(r.LastSeen) {
				r.LastSeen = before.LastSeen
			}
		}
	}
	return remembered
}

// Forget gives up a removed server and its id at once, whatever connections it may have.
func (n *Node) Forget(service, server string) error {
	before := len(n.Removed)
	n.Removed = slices.DeleteFunc(n.Removed, func(r Removed) bool { return r.Service == service && r.Server.Name == server })
	if len(n.Removed) == before {
		return fmt.Errorf("forget %s of service %s: it is not among the removed servers (see `ballast ctl servers`)", server, service)
	}
	return nil
}
