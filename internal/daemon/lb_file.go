// The configuration file of a load balancer that runs by one: what is taken of it, and what force takes.
package daemon

import (
	"errors"
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/machine/node"
)

// Reload applies the configuration file as it is now; one that cannot be applied is refused and the old state goes on. By force it is taken
// although living connections lose their servers. It returns what changed, a line each.
func (lb *LB) Reload(force bool) (changes []string, err error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	refused := lb.file.Error
	file, err := configfile.Load(lb.options.Config, lb.log)
	if err == nil {
		changes, err = lb.edit(file, force)
	}
	configfile.Note(&lb.file, refused, err, lb.log)
	return changes, err
}

func (lb *LB) edit(file *config.File, force bool) ([]string, error) {
	before, take := lb.node, lb.node.EditFile
	if force {
		take = lb.node.ForceFile
	}
	changes, err := take(file.Fleet, time.Now())
	if err = lb.carryOutFile(before, "reload", err); err != nil {
		return nil, fmt.Errorf("%s: %w", file.Path, err)
	}
	lb.file, lb.stale = api.Config{Path: file.Path, SHA256: file.SHA256}, false
	lb.logChanges("file", changes)
	return changes, nil
}

// reset undoes what ctl changed; by force also what living connections do not survive.
func (lb *LB) reset(by string, force bool) ([]string, error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	before := lb.node
	changes, err := lb.node.Reset(force, time.Now())
	if err = lb.carryOutFile(before, "reset", err); err != nil {
		return nil, err
	}
	lb.logChanges(by, changes)
	return changes, nil
}

// carryOutFile carries out what an action has taken of the file, unless it was refused.
func (lb *LB) carryOutFile(before node.Node, action string, refused error) error {
	var breaks *node.Breaks
	if errors.As(refused, &breaks) {
		return configfile.ByForce(refused, lb.options.Instance, action)
	}
	if refused != nil {
		return refused
	}
	return lb.carryOut(before)
}
