// Changes of the desired state, one at a time.
package lb

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
)

// changes carry out one change of the desired state at a time. Readers use tables.Now and outcome, and never block. mutex comes before the locks
// of all parts.
type changes struct {
	*parts
	mutex   sync.Mutex
	owned   owned // mutex guards it
	outcome atomic.Pointer[outcome]
}

// owned is what a change of the desired state needs to itself.
type owned struct {
	state    *desired.State // that the tables follow, but for when packets of removed servers came
	kept     statefile.File
	revision uint64 // of the controllers' state
	standIn  standIn
}

// outcome is what became of changes, for who only looks. It never changes.
type outcome struct {
	config   api.Config // where the state is from, and why what was said since is refused
	stale    bool       // the state is of before a reboot, and the file that would replace it is refused
	revision uint64     // that controllers gave the state
	alone    time.Time  // since when this load balancer judges in place of controllers; zero: it does not
	unsaved  string     // why the state file is not that of now, empty: it is
}

// changing is what a change of the desired state works on while it holds the mutex: changes.change gives it.
type changing struct {
	*changes
	*owned
}

func (cs *changes) change(do func(c changing) error) error {
	cs.mutex.Lock()
	defer cs.mutex.Unlock()
	return do(changing{cs, &cs.owned})
}

// note changes what is known of changes.
func (c changing) note(edit func(*outcome)) {
	next := *c.outcome.Load()
	edit(&next)
	c.outcome.Store(&next)
}

// reconcile makes the tables, and all else, follow another state. When the tables cannot, nothing changes.
func (c changing) reconcile(next *desired.State) error {
	if err := c.fits(&next.Running); err != nil {
		return err
	}
	if err := c.tables.Reconcile(next); err != nil {
		return err
	}
	c.state = next
	c.checks.Follow(c.tables)
	if judge := c.judges(); judge != nil {
		judge.Follow(c.tables.Now())
	}
	c.save()
	c.bgp.Wake()
	c.l2.Wake()
	c.liveness.Wake()
	return nil
}

// fits refuses what a load balancer that runs by a file cannot have.
func (c changing) fits(fleet *model.Fleet) error {
	if c.local == nil {
		return nil
	}
	return cmp.Or(fleet.CheckWithoutControllers(), checkOwnListeners(&c.options, fleet))
}

// save saves the state, if there is one.
func (c changing) save() {
	if !c.tables.Now().Followed {
		return
	}
	s := c.state
	saved := savedState{
		Base: statefile.Fleet(s.Base), Running: statefile.Fleet(s.Running), Removed: s.Removed, Past: s.Past, Unhealthy: s.Unhealthy,
		TakesPart: c.clocks.Known(), Revision: c.revision, Suspects: c.sweeper.Suspects(),
	}
	saved.BGP, saved.L2, saved.Alone = c.bgp.Kept(), c.l2.Kept(), c.standIn.end != nil
	if c.replication != nil {
		saved.Replication = c.replication.State()
	}
	c.kept.Save(saved)
	c.note(func(o *outcome) { o.unsaved, o.revision = c.kept.Unsaved(), c.revision })
}

// saveState saves what is not part of the desired state.
func (cs *changes) saveState() {
	cs.change(func(c changing) error {
		c.save()
		return nil
	})
}

// followPaths makes the tables, and what depends on them, follow the ways to servers.
func (cs *changes) followPaths() { cs.follow(cs.tables.Refresh) }

func (cs *changes) follow(refresh func() error) {
	if err := refresh(); err != nil {
		cs.log.Error("next hops not updated", "error", err)
	}
	cs.programs.follow(cs.tables.Now().Paths, time.Now())
	cs.checks.Follow(cs.tables)
	cs.bgp.Wake()
	cs.l2.Wake()
	cs.liveness.Wake()
}

// attach puts the program on devices.
func (cs *changes) attach(interfaces []*net.Interface, patience time.Duration) error {
	path, before := cs.tables.Path(), pin.Devices(cs.pins())
	if err := cs.programs.attach(interfaces, cs.tables.Now().Paths, patience, path.Attached); err != nil {
		return err
	}
	if cs.tables.HereHasChanged() { // an agent was there, and runs behind the program now
		cs.followPaths()
	}
	for _, name := range before {
		if !slices.Contains(pin.Devices(cs.pins()), name) && !slices.ContainsFunc(interfaces, func(device *net.Interface) bool { return device.Name == name }) {
			cs.log.Warn("the program is taken off a device that an earlier process had it on: name it with --interface if packets still come in by it", "interface", name)
		}
	}
	cs.log.Info("started", "instance", cs.options.Instance, "services", len(cs.tables.Now().Running.Services), "took over", path.Adopted())
	return nil
}

// attachLate attaches what had to wait for a first state.
func (c changing) attachLate() {
	waiting := c.programs.waiting()
	if !c.tables.Now().Followed || len(waiting) == 0 {
		return
	}
	if err := c.attach(waiting, 0); err != nil {
		c.log.Error("not attached: an earlier program goes on", "error", err)
	}
}

func (cs *changes) logChanges(source string, changes []string) {
	for _, change := range changes {
		cs.log.Info("changed", "by", source, "what", change)
	}
}

// refuseIfRemote: a change of one node would be undone by the next word of a controller.
func (cs *changes) refuseIfRemote() error {
	if cs.controllers == nil {
		return nil
	}
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this load balancer runs by controllers: use `%s`", cs.askControllers()))
}

// askControllers begins the ctl commands that change the fleet.
func (cs *changes) askControllers() string {
	return "ballast ctl --controller " + strings.Join(cs.options.Controllers, ",")
}

// edit runs an edit of the desired state and carries it out, unless it is a dry run. The errors of edit are returned as they are.
func (cs *changes) edit(ctx context.Context, dryRun bool, edit fleet.Edit) (changes []string, revision uint64, err error) {
	err = cs.change(func(c changing) error {
		defer func() { revision = c.tables.Now().Generation }()
		if err := c.refuseIfRemote(); err != nil {
			return err
		}
		next := c.state.Desired
		next.Base = next.Running // a file that ctl applies is not the one that this node runs by: it is taken as it is
		changes, err = next.Change(time.Now(), edit)
		next.Base = c.state.Base
		if err != nil {
			c.log.Debug("a change was refused", "by", api.CallerName(ctx), "error", err)
		}
		if err != nil {
			return err
		}
		if dryRun {
			return c.fits(&next.Running)
		}
		if err := c.reconcile(c.state.With(next)); err != nil {
			changes = nil
			return err
		}
		c.logChanges(api.CallerName(ctx), changes)
		return nil
	})
	return changes, revision, err
}

// forget gives up a removed server and its id, unless it is a dry run.
func (cs *changes) forget(ctx context.Context, dryRun bool, service, server string) (changes []string, revision uint64, err error) {
	err = cs.change(func(c changing) error {
		defer func() { revision = c.tables.Now().Generation }()
		if err := c.refuseIfRemote(); err != nil {
			return err
		}
		next := c.state.Desired
		forgotten, err := next.Forget(service, server)
		if err != nil {
			return connect.NewError(connect.CodeNotFound, err)
		}
		if dryRun {
			changes = forgotten
			return nil
		}
		if err := c.reconcile(c.state.With(next)); err != nil {
			return err
		}
		changes = forgotten
		c.logChanges(api.CallerName(ctx), changes)
		return nil
	})
	return changes, revision, err
}

// onUnhealthy replaces who is unhealthy of some services, as this process has decided.
func (cs *changes) onUnhealthy(found map[string]fleet.Unhealthy) {
	cs.change(func(c changing) error { return c.applyUnhealthy(found) })
}

func (c changing) applyUnhealthy(found map[string]fleet.Unhealthy) error {
	next := c.state.WithUnhealthy(found)
	if err := c.reconcile(next); err != nil {
		c.log.Error("health of servers not applied", "services", len(found), "error", err)
		return err
	}
	for _, service := range slices.Sorted(maps.Keys(found)) {
		var names []string
		for _, id := range slices.Concat(found[service].Down, found[service].Kept) {
			names = append(names, next.ServerName(service, id))
		}
		c.log.Info("health of servers", "service", service, "unhealthy", names)
	}
	return nil
}

// onDrained switches a server off: the deadline of its drain has passed.
func (cs *changes) onDrained(service string, id uint16) {
	_, _, err := cs.edit(context.Background(), false, fleet.EndDrain(service, id, time.Now()))
	if err != nil {
		cs.log.Error("drained server not switched off", "service", service, "id", id, "error", err)
	}
}

// onClocks follows what probes have found.
func (cs *changes) onClocks() {
	if err := cs.change(func(c changing) error { return c.reconcile(c.state) }); err != nil {
		cs.log.Error("tables not updated", "error", err)
	}
}

func (cs *changes) reweigh(service string, update *follow.Update) { cs.tables.Reweigh(service, update) }

func (cs *changes) count(service string, counts *follow.Counts) { cs.tables.Count(service, counts) }

func (cs *changes) load(service string, loads *follow.Loads) { cs.tables.Load(service, loads) }

func (c changing) age(now time.Time) {
	c.attachLate()
	if c.kept.Unsaved() != "" {
		c.save()
	}
	if err := c.tables.Age(now, agePeriod); err != nil {
		c.log.Error("tables are still behind the desired state", "error", err)
		return
	}
	if c.local == nil || len(c.state.Removed) == 0 { // controllers do
		return
	}
	next := c.state.Editable()
	changed := next.Age(now, c.options.Timing, c.tables.Now().Packets)
	aged := c.state.With(next)
	if !changed {
		c.state = aged
	} else if err := c.reconcile(aged); err != nil {
		c.log.Error("timed changes not applied", "error", err)
	}
}
