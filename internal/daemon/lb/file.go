// The configuration file of a load balancer that runs by one: what is taken of it, and what force takes.
package lb

import (
	"errors"
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
)

// begin follows the file, or without one what was known before.
func (c changing) begin(file *config.File) error {
	if file == nil {
		return c.reconcile(c.state)
	}
	_, err := c.applyFile(file, false)
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

// Reload applies the configuration file as it is now; one that cannot be applied is refused and the old state is kept. By force it is taken
// although living connections lose their servers. It returns what changed, a line each.
func (cs *changes) Reload(force bool) (changes []string, err error) {
	err = cs.change(func(c changing) error {
		refused := c.outcome.Load().config.Error
		file, err := configfile.Load(c.options.Config, c.log)
		if err == nil {
			changes, err = c.applyFile(file, force)
		}
		c.note(func(o *outcome) { configfile.Note(&o.config, refused, err, c.log) })
		return err
	})
	return changes, err
}

func (c changing) applyFile(file *config.File, force bool) ([]string, error) {
	next := c.state.Desired
	take := next.EditFile
	if force {
		take = next.ForceFile
	}
	changes, err := take(file.Fleet, time.Now())
	if err = c.reconcileFile(next, "reload", err); err != nil {
		return nil, fmt.Errorf("%s: %w", file.Path, err)
	}
	c.note(func(o *outcome) { o.config, o.stale = api.Config{Path: file.Path, SHA256: file.SHA256}, false })
	c.logChanges("file", changes)
	return changes, nil
}

// reset undoes what ctl changed; by force also what living connections do not survive.
func (cs *changes) reset(by string, force bool) (changes []string, err error) {
	err = cs.change(func(c changing) error {
		next := c.state.Desired
		undone, err := next.Reset(force, time.Now())
		if err = c.reconcileFile(next, "reset", err); err != nil {
			return err
		}
		changes = undone
		c.logChanges(by, changes)
		return nil
	})
	return changes, err
}

// reconcileFile carries out what an action has taken of the file, unless it was refused.
func (c changing) reconcileFile(next fleet.Desired, action string, refused error) error {
	var breaks *fleet.Breaks
	if errors.As(refused, &breaks) {
		return configfile.ByForce(refused, c.options.Instance, action)
	}
	if refused != nil {
		return refused
	}
	return c.reconcile(c.state.With(next))
}
