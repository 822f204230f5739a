// Package fleet decides what is wanted: it keeps the desired state of a load balancer or of a fleet, merges the file's edits and the changes made
// through ctl, tells what differs and what of it harms, and remembers servers that were removed while connections to them may still live.
//
// It is pure: time is an argument, nothing here does I/O.
package fleet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

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

	looked  bool   // this process has: LastSeen is by its clock, which no step of the time of day moves
	packets uint64 // when last looked at
}

// Unhealthy are the servers of a service that fail their checks, by id: what checks say and what all_down makes of it stay apart.
type Unhealthy struct {
	Down []uint16 `json:"down"`           // get no new connections
	Kept []uint16 `json:"kept,omitempty"` // get new connections all the same: every server fails, and all_down says so
	Cut  []uint16 `json:"cut,omitempty"`  // of Down, those whose connections are cut. Controllers send them as servers that are off
}

// None reports whether no server fails.
func (u Unhealthy) None() bool { return len(u.Down)+len(u.Kept) == 0 }

// Equal reports whether both say the same of the same servers.
func (u Unhealthy) Equal(other Unhealthy) bool {
	return slices.Equal(u.Down, other.Down) && slices.Equal(u.Kept, other.Kept) && slices.Equal(u.Cut, other.Cut)
}

// Timing bounds how long removed servers are remembered.
type Timing struct {
	Linger     time.Duration // without a packet, until a removed server's connections count as ended
	Quarantine time.Duration // after that, until its id may be given to another server
}

// DefaultTiming keeps connections that are silent for a day.
var DefaultTiming = Timing{Linger: 24 * time.Hour, Quarantine: 24 * time.Hour}

// Desired is the desired state of a load balancer by a file, or of a fleet by controllers. The zero value knows nothing yet.
type Desired struct {
	// Base is what the file that was applied last is taken to have said, so what an edit of it is an edit of. For a load balancer by a file it is
	// that file; for a fleet see Recall.
	Base    model.Fleet
	Running model.Fleet // what is wanted now: the file and what ctl changed since
	Removed []Removed
	// Past holds, by service, the shares that its table was made of before, oldest first: a node that has lost its tables makes
	// their history from it (second chance).
	Past map[string][][]model.Share
}

// pastDepth is how many earlier versions of a table are remembered; a slot keeps history.Depth distinct owners of them.
const pastDepth = 8

// EditFile takes the file as it is now. Only what differs from the file as it was is applied: unchanged lines never undo what
// ctl changed, and an edit overrides it. It returns what changed, one line each. What living connections would not survive is *Breaks.
func (n *Desired) EditFile(file model.Fleet, now time.Time) ([]string, error) {
	return n.editFile(file, false, now)
}

// ForceFile is EditFile, whatever becomes of living connections.
func (n *Desired) ForceFile(file model.Fleet, now time.Time) ([]string, error) {
	return n.editFile(file, true, now)
}

// Breaks refuses what would take living connections from their servers.
type Breaks struct{ Why error }

func (b *Breaks) Error() string { return b.Why.Error() }

// Unwrap returns *model.Invalid, alone or joined.
func (b *Breaks) Unwrap() error { return b.Why }

func (n *Desired) editFile(file model.Fleet, force bool, now time.Time) (changes []string, err error) {
	_, err = n.change(now, force, func(next *Desired) error {
		changes, _ = next.Apply(file.Clone())
		return n.checkInUse(&next.Running.Keys, force)
	})
	return changes, err
}

// Reset undoes what ctl changed: the file rules. It refuses what EditFile does, but for force.
func (n *Desired) Reset(force bool, now time.Time) ([]string, error) {
	return n.change(now, force, func(next *Desired) error {
		next.Running = n.Base.Clone()
		return n.checkInUse(&next.Running.Keys, force)
	})
}

// checkInUse refuses keys without the one in use: ctl asks whether other nodes do without it, a file asks nobody.
func (n *Desired) checkInUse(next *model.Keys, force bool) error {
	current := n.Running.Keys.Current
	_, used := n.Running.Keys.Cookie[current]
	if _, kept := next.Cookie[current]; force || kept || !used {
		return nil
	}
	return &Breaks{&model.Invalid{Path: "keys.cookie", Problem: fmt.Sprintf("the key in use, of epoch %d, is not among them, and living connections carry it", current),
		Remedy: "add new keys beside it, and drop it once another has been current and no connection carries it"}}
}

// Edit alters what runs, as ctl does, and Base where it takes a file. It may be called again when somebody else has changed the state in the
// meantime, so it decides by its argument alone. The ids of Removed are not free.
type Edit func(next *Desired) error

// Change carries an edit out.
func (n *Desired) Change(now time.Time, edit Edit) ([]string, error) {
	return n.change(now, false, edit)
}

func (n *Desired) change(now time.Time, force bool, edit Edit) ([]string, error) {
	next := *n
	next.Running = n.Running.Clone()
	if err := edit(&next); err != nil {
		return nil, err
	}
	changes, err := n.become(next.Running, force, now)
	if err == nil {
		n.Base = next.Base
	}
	return changes, err
}

// EndDrain is the edit that switches a server off, if its drain has ended by now.
func EndDrain(service string, id uint16, now time.Time) Edit {
	return func(next *Desired) error {
		if s := next.Running.Service(service); s != nil {
			server := byID(s, id)
			if server != nil && server.DrainEnded(now) {
				server.State = model.StateOff
			}
		}
		return nil
	}
}

// Apply, for an Edit, takes a file: what differs between it and Base is changed, and kept tells what else of Running differs from it.
func (n *Desired) Apply(file model.Fleet) (changes, kept []string) {
	n.Running, changes = mergeFile(n.Base, file, n.Running)
	n.Base = file
	return changes, Diff(file, n.Running)
}

// Differences tells how the desired state differs from the file.
func (n *Desired) Differences() []string { return Diff(n.Base, n.Running) }

func (n *Desired) become(next model.Fleet, force bool, now time.Time) ([]string, error) {
	next.ApplyDefaults()
	if err := next.Validate(); err != nil {
		return nil, err
	}
	before := Earlier(&n.Running, &next)
	if err := n.keeps(&next, before); err != nil && !force {
		return nil, err
	}
	changes := Diff(n.Running, next)
	n.Removed, n.Past = n.removedAfter(&next, before, now), n.pastAfter(&next, before)
	n.Running = next
	return changes, nil
}

func (n *Desired) keeps(next *model.Fleet, earlier map[string][]*model.Service) error {
	if err := errors.Join(n.checkIDs(next, earlier), n.checkCookies(next)); err != nil {
		return &Breaks{err}
	}
	return nil
}

// Keeps refuses a state of another origin, controllers for a file, that living connections would not survive.
func (n *Desired) Keeps(next *model.Fleet) error {
	return errors.Join(n.keeps(next, Earlier(&n.Running, next)), n.checkInUse(&next.Keys, false))
}

// byName finds services: Fleet.Service would look at all of them for each.
func byName(f *model.Fleet) map[string]*model.Service {
	found := make(map[string]*model.Service, len(f.Services))
	for i := range f.Services {
		found[f.Services[i].Name] = &f.Services[i]
	}
	return found
}

// Earlier tells, by the name of a service of next, the services of running whose connections it takes over: the one of its name, and
// those that lose one of its ports at its VIP to it, by the same protocol. So a renamed service has one, one that others were merged into has
// several, those that one was split into share theirs, and one that gets a port of another has both.
func Earlier(running, next *model.Fleet) map[string][]*model.Service {
	before, earlier := map[netip.Addr][]*model.Service{}, map[string][]*model.Service{}
	for i := range running.Services {
		for _, vip := range running.Services[i].VIPs() {
			before[vip] = append(before[vip], &running.Services[i])
		}
	}
	named := byName(running)
	for i := range next.Services {
		s := &next.Services[i]
		if same := named[s.Name]; same != nil {
			earlier[s.Name] = append(earlier[s.Name], same)
		}
		for _, vip := range s.VIPs() {
			for _, old := range before[vip] {
				if old.Name != s.Name && takesOver(old, s) && !slices.Contains(earlier[s.Name], old) {
					earlier[s.Name] = append(earlier[s.Name], old)
				}
			}
		}
	}
	return earlier
}

// checkIDs refuses an id that connections of another server may still carry, and services that take over connections of two servers with
// one id.
func (n *Desired) checkIDs(next *model.Fleet, earlier map[string][]*model.Service) error {
	removed := map[string][]*Removed{}
	for i := range n.Removed {
		removed[n.Removed[i].Service] = append(removed[n.Removed[i].Service], &n.Removed[i])
	}
	for i := range next.Services {
		s := &next.Services[i]
		if !s.Affinity.KeepsIDs() {
			continue
		}
		owners := map[uint16]*Removed{}
		for _, before := range earlier[s.Name] {
			if before.Name != s.Name && !before.Affinity.KeepsIDs() {
				continue
			}
			carried := slices.Clone(removed[before.Name])
			for j := range before.Servers {
				carried = append(carried, &Removed{Service: before.Name, Server: before.Servers[j]})
			}
			for _, r := range carried {
				if other := owners[r.Server.ID]; other != nil && !same(&other.Server, &r.Server) {
					return twoOwners(s, other, r)
				}
				owners[r.Server.ID] = r
			}
		}
		for j := range s.Servers {
			if before := owners[s.Servers[j].ID]; before != nil && !same(&before.Server, &s.Servers[j]) {
				return n.idInUse(s, &s.Servers[j], before, earlier[s.Name])
			}
		}
	}
	return nil
}

func twoOwners(s *model.Service, a, b *Removed) error {
	return &model.Invalid{
		Path: "services." + s.Name,
		Problem: fmt.Sprintf("id %d is that of %s (%s) in service %s and that of %s (%s) in service %s, and living connections of both would become its own",
			a.Server.ID, a.Server.Name, a.Server.Address, a.Service, b.Server.Name, b.Server.Address, b.Service),
		Remedy: "make the ports that it would get a service of their own, or give it another VIP; or take those ports away first, which ends their connections",
	}
}

// checkCookies refuses what would make the cookies of living connections unreadable without a word.
func (n *Desired) checkCookies(next *model.Fleet) error {
	if err := KeysKept(&n.Running.Keys, &next.Keys); err != nil {
		return err
	}
	running := map[netip.Addr][]*model.Service{}
	for i := range n.Running.Services {
		s := &n.Running.Services[i]
		for _, vip := range s.VIPs() {
			running[vip] = append(running[vip], s)
		}
	}
	for i := range next.Services {
		for _, vip := range next.Services[i].VIPs() {
			for _, old := range running[vip] {
				if !takesOver(old, &next.Services[i]) {
					continue
				}
				if err := n.checkLayout(old, &next.Services[i]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// KeysKept refuses keys that are others than those before under the same name: nobody could read what was written with them.
func KeysKept(before, next *model.Keys) error {
	if before.Placement != [16]byte{} && before.Placement != next.Placement {
		return &model.Invalid{Path: "keys.placement", Problem: "it has changed, and connections without cookies would be looked for elsewhere",
			Remedy: "put the old one back. If the fleet at the controllers was begun with a wrong one, begin it again, with an empty store: \"Backup and restore\" in docs/run/operate.md"}
	}
	for epoch, key := range next.Cookie {
		if old, known := before.Cookie[epoch]; known && old != key {
			return &model.Invalid{Path: fmt.Sprintf("keys.cookie.%d", epoch), Problem: "the key of an epoch in use has changed",
				Remedy: "put the old one back and add the new key as the next epoch"}
		}
	}
	return nil
}

// takesOver reports whether connections of before would be read as those of after, at the same VIP: it is the same service, or one under
// another name.
func takesOver(before, after *model.Service) bool {
	return before.Name == after.Name || before.Protocol == after.Protocol && after.SharesPort(before)
}

func (n *Desired) idInUse(s *model.Service, server *model.Server, r *Removed, earlier []*model.Service) error {
	return &model.Invalid{
		Path:    "services." + s.Name + ".servers." + server.Name + ".id",
		Problem: fmt.Sprintf("id %d is that of %s (%s), whose connections may still live", server.ID, r.Server.Name, r.Server.Address),
		Remedy:  fmt.Sprintf("use id %d; once the old one is removed, `ballast ctl server forget` gives its id up", n.NextID(s, earlier...)),
	}
}

// NextID returns an id of the service that no server of it or of earlier services has, or had lately; 0: none is left.
func (n *Desired) NextID(s *model.Service, earlier ...*model.Service) uint16 {
	with := s.Clone()
	for _, before := range earlier {
		with.Servers = append(with.Servers, before.Servers...)
	}
	for _, r := range n.Removed {
		if r.Service == s.Name || slices.ContainsFunc(earlier, func(before *model.Service) bool { return r.Service == before.Name }) {
			with.Servers = append(with.Servers, r.Server)
		}
	}
	id, _ := with.NextFreeID()
	return id
}

func same(a, b *model.Server) bool { return a.Address == b.Address && a.Port == b.Port }

// removedAfter returns the removed servers once next is wanted: those that left just now, less those that came back. Services take over those
// of earlier ones.
func (n *Desired) removedAfter(next *model.Fleet, earlier map[string][]*model.Service, now time.Time) (removed []Removed) {
	heirs := map[string][]*model.Service{}
	for i := range next.Services {
		s := &next.Services[i]
		for _, before := range earlier[s.Name] {
			if s.Affinity.KeepsIDs() {
				heirs[before.Name] = append(heirs[before.Name], s)
			}
		}
	}
	type owner struct {
		service string
		id      uint16
	}
	known := map[owner]bool{}
	leave := func(r Removed) {
		for _, heir := range heirs[r.Service] {
			if at := (owner{heir.Name, r.Server.ID}); byID(heir, r.Server.ID) == nil && !known[at] {
				known[at], r.Service = true, heir.Name
				removed = append(removed, r)
			}
		}
	}
	for _, r := range n.Removed {
		leave(r)
	}
	for i := range n.Running.Services {
		before := &n.Running.Services[i]
		for j := range before.Servers {
			if before.Affinity.KeepsIDs() {
				leave(Removed{Service: before.Name, Server: before.Servers[j], Since: now, LastSeen: now})
			}
		}
	}
	return removed
}

// pastAfter returns the past of the services of next: what runs now has passed where it differs. Of several earlier ones the first counts.
func (n *Desired) pastAfter(next *model.Fleet, earlier map[string][]*model.Service) map[string][][]model.Share {
	past := map[string][][]model.Share{}
	for i := range next.Services {
		after := &next.Services[i]
		if len(earlier[after.Name]) == 0 {
			continue
		}
		before := earlier[after.Name][0]
		versions := n.Past[before.Name]
		if !slices.Equal(before.Shares(), after.Shares()) {
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
func (n *Desired) Lingering(service string) (servers []model.Server) {
	for _, r := range n.Removed {
		if r.Service == service && !r.Forgotten {
			servers = append(servers, r.Server)
		}
	}
	return servers
}

// Age looks at what removed servers were sent in all, and forgets those that have been silent for long. It reports whether the
// tables need an update. Only time that this process has watched counts: LastSeen from elsewhere is by a clock that may have been set
// since, and packets may have come unseen. So a first look counts as a packet, and has all of the quarantine before it.
func (n *Desired) Age(now time.Time, timing Timing, packets func(service string, id uint16) uint64) (changed bool) {
	for i := range n.Removed {
		r := &n.Removed[i]
		first := !r.looked
		r.looked = true
		if r.Forgotten {
			if first {
				r.LastSeen = now.Add(-timing.Linger)
			}
			continue
		}
		if count := packets(r.Service, r.Server.ID); first || count != r.packets {
			r.packets, r.LastSeen = count, now
		}
		if now.Sub(r.LastSeen) > timing.Linger {
			r.Forgotten, changed = true, true
		}
	}
	n.Removed = slices.DeleteFunc(n.Removed, func(r Removed) bool {
		return r.Forgotten && now.Sub(r.LastSeen) > timing.Linger+timing.Quarantine
	})
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
		if before := known[of(r)]; before != nil && !r.LastSeen.After(before.LastSeen) { // else somebody has seen a packet since
			r.looked, r.packets, r.LastSeen = before.looked, before.packets, before.LastSeen
		}
	}
	return remembered
}

// Forget gives up a removed server and its id at once, whatever connections it may have.
func (n *Desired) Forget(service, server string) (changes []string, err error) {
	before := len(n.Removed)
	n.Removed = slices.DeleteFunc(slices.Clone(n.Removed), func(r Removed) bool { return r.Service == service && r.Server.Name == server })
	if len(n.Removed) == before {
		return nil, fmt.Errorf("forget %s of service %s: it is not among the removed servers (see `ballast ctl server list`)", server, service)
	}
	return []string{fmt.Sprintf("service %s: removed server %s: forgotten, its id is free", service, server)}, nil
}
