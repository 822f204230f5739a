// The configuration file of an agent that runs by one.
package daemon

import (
	"cmp"
	"fmt"
	"slices"
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
func (a *Agent) Reload(force bool) (changes []string, err error) {
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
func (a *Agent) refuseAtStart(file *config.File) *config.File {
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
func (a *Agent) keepsCookies(next *config.File) error {
	keeps, running := a.keepsPinned, a.stateKnown && a.applied != nil
	if running {
		keeps = a.keepsApplied
	}
	err := keeps(next)
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

// keepsPinned compares with what an earlier process has left; what no living connection carries may change.
func (a *Agent) keepsPinned(next *config.File) error {
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

// keepsApplied compares with the file that runs.
func (a *Agent) keepsApplied(next *config.File) error {
	if err := node.KeysKept(&a.applied.Fleet.Keys, &next.Fleet.Keys); err != nil {
		return err
	}
	mine := a.mine(a.local)
	for i := range a.applied.Fleet.Services {
		before := &a.applied.Fleet.Services[i]
		after := next.Fleet.Service(before.Name)
		if after == nil {
			continue
		}
		for _, was := range before.Servers {
			is := slices.IndexFunc(after.Servers, func(s model.Server) bool { return s.Name == was.Name && s.Address == was.Address })
			if is >= 0 && mine(&was) && after.Servers[is].ID != was.ID {
				return idChanged(before.Name, was.Name, was.ID, after.Servers[is].ID)
			}
		}
	}
	return nil
}

func idChanged(service, server string, from, to uint16) error {
	return &model.Invalid{
		Path:    "services." + service + ".servers." + server + ".id",
		Problem: fmt.Sprintf("it has changed from %d to %d, and living connections carry the old one", from, to),
		Remedy:  "put the old one back: ids are the same on all nodes, as long as the server is there",
	}
}
