// The configuration file of an agent that runs by one.
package agent

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Reload applies the configuration file as it is now; one that cannot be applied is refused and the old state goes on. By force it is taken
// although living connections lose their server. It returns what changed, a line each.
func (a *agent) Reload(force bool) (changes []string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	refused := a.file.Error
	file, err := configfile.Load(a.options.Config, a.log)
	if err == nil && !force {
		err = a.keepsCookies(file)
	}
	if err == nil {
		generation := a.generation
		if err = a.apply(file); a.generation != generation {
			changes = append(changes, fmt.Sprintf("serves %s", cmp.Or(strings.Join(a.wanted.Marking, ", "), "nothing")))
		}
	}
	if err == nil && !a.stateKnown {
		a.attachLate()
	}
	configfile.Note(&a.file, refused, err, a.log)
	return changes, err
}

// refuseAtStart returns the file that an agent begins with. One that would give living connections another cookie is refused: nothing is
// served by it, and what an earlier process left goes on untouched until the file is in order, or taken by force. The caller holds mu.
func (a *agent) refuseAtStart(file *config.File) *config.File {
	err := a.keepsCookies(file)
	if err == nil {
		return file
	}
	a.stateKnown = false
	a.file.Path = file.Path
	configfile.Note(&a.file, "", err, a.log)
	return &config.File{Path: file.Path, Fleet: model.Fleet{TunnelsFrom: file.Fleet.TunnelsFrom}}
}

// keepsCookies refuses what would give living connections another cookie than load balancers read. The caller holds mu.
func (a *agent) keepsCookies(next *config.File) error {
	running := a.stateKnown && a.applied != nil
	var err error
	if running {
		err = node.KeysKept(&a.applied.Fleet.Keys, &next.Fleet.Keys)
	}
	if err == nil {
		err = a.keepsServed(next)
	}
	if err == nil {
		return nil
	}
	byParity, uncounted := a.path.Echoes()
	living := byParity[0] + byParity[1]
	if !running && living == 0 && uncounted == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", next.Path, configfile.ByForce(err, living))
}

// keepsServed compares with the rows that are published, by this process or an earlier one, whatever services and servers are called.
func (a *agent) keepsServed(next *config.File) error {
	local, err := netdev.LocalAddresses()
	if err != nil {
		return err
	}
	wanted, err := plan.NewAgent(&next.Fleet, a.mine(local))
	if err != nil {
		return nil // apply says it
	}
	return wanted.Keeps(&next.Fleet, a.path.Served())
}
