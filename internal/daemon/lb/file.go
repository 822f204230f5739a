// The configuration file of a load balancer that runs by one: what is taken of it, and what force takes.
package lb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

// begin follows the file, or without one what was known before.
func (c changing) begin(file *config.File) error {
	if file == nil {
		return c.reconcile(c.state)
	}
	_, err := c.applyFile(file, configfile.Taking{AllowRemove: true, Start: true}) // people start it by what they have written
	var breaks *fleet.Breaks
	if !errors.As(err, &breaks) {
		return err
	}
	c.note(func(o *outcome) { // what connections live by goes on, and somebody can be asked for the rest
		o.config.Path, o.stale = c.options.Config, !c.tables.Path().Adopted()
		configfile.Note(&o.config, "", err, c.log)
	})
	return c.reconcile(c.state)
}

// Reload applies the configuration file as it is now; one that cannot be applied, or that may be half of one, is refused and the old state is kept.
// By force it is taken although living connections lose their servers.
func (cs *changes) Reload(how configfile.Taking) (changed api.Changed, err error) {
	err = cs.change(func(c changing) error {
		refused := c.outcome.Load().config.Error
		file, err := configfile.Load(c.options.Config, c.log)
		if err == nil {
			changed, err = c.applyFile(file, how)
		}
		if how.DryRun {
			return err
		}
		c.note(func(o *outcome) { configfile.Note(&o.config, refused, err, c.log) })
		return err
	})
	return changed, err
}

func (c changing) applyFile(file *config.File, how configfile.Taking) (changed api.Changed, err error) {
	next := c.state.Desired
	take := next.EditFile
	if how.Force {
		take = next.ForceFile
	}
	var losses []string
	if changed.Changes, err = take(file.Fleet, time.Now()); err == nil {
		losses = configfile.Losses(&c.state.Running, &next.Running, api.Counting(context.Background(), fleetAPI{observer{c.changes}}))
		err = how.Whole(losses, c.options.Instance)
	}
	if err = c.takeFile(next, "reload", how, &changed, err); err != nil {
		return api.Changed{}, fmt.Errorf("%s: %w", file.Path, err)
	}
	if how.DryRun {
		changed.Warnings = append(changed.Warnings, losses...)
	} else {
		c.note(func(o *outcome) { o.config, o.stale = api.Config{Path: file.Path, SHA256: file.SHA256}, false })
		c.logChanges("file", changed.Changes)
	}
	return changed, nil
}

// reset undoes what ctl changed; by force also what living connections do not survive.
func (cs *changes) reset(by string, how configfile.Taking) (changed api.Changed, err error) {
	err = cs.change(func(c changing) error {
		next := c.state.Desired
		undone, err := next.Reset(how.Force, time.Now())
		if err = c.takeFile(next, "reset", how, &changed, err); err != nil {
			return err
		}
		if changed.Changes = undone; !how.DryRun {
			c.logChanges(by, undone)
		}
		return nil
	})
	return changed, err
}

// orphans are the predecessors that go and that connections go on to. What nobody has counted yet, at the start, is none.
func (c changing) orphans(next *model.Fleet) []string {
	return fleet.Orphaned(&c.state.Running, next, func(service string) fleet.Connections {
		if counted := (fleetAPI{observer{c.changes}}).PredecessorConnections(service); counted.Known {
			return counted
		}
		return fleet.Connections{Known: true}
	})
}

// breaking are the changes by which connections of services break that live.
func (c changing) breaking(next *model.Fleet) []string {
	return fleet.Breaking(&c.state.Running, next, api.Counting(context.Background(), fleetAPI{observer{c.changes}}))
}

// takeFile carries out what an action has taken of the file, unless it was refused. A dry run adds what that harms, and what becomes of connections.
func (c changing) takeFile(next fleet.Desired, action string, how configfile.Taking, changed *api.Changed, refused error) error {
	var breaks *fleet.Breaks
	if errors.As(refused, &breaks) {
		return configfile.ByForce(refused, c.options.Instance, action)
	}
	if refused != nil {
		return refused
	}
	if how.DryRun {
		ctx, servers := context.Background(), fleetAPI{observer{c.changes}}
		changed.Warnings = api.Dangers(ctx, servers, &c.state.Running, &next.Running)
		changed.Live = api.Living(ctx, servers, &c.state.Running, &next.Running)
		return c.fits(&next.Running)
	}
	unless := func(lines []string, first string) error {
		if len(lines) == 0 {
			return nil
		}
		return fmt.Errorf("%s; %sif they may break: `%s config %s --%s` takes the file", strings.Join(lines, "; "), first, api.Ctl(c.options.Instance), action, api.Force)
	}
	if err := unless(c.orphans(&next.Running), "wait until ballast_predecessor_connections is 0; "); err != nil && !how.Force {
		return err
	}
	if err := unless(c.breaking(&next.Running), ""); err != nil && !how.Force && !how.Start {
		return err
	}
	return c.reconcile(c.state.With(next))
}
