package doctor

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

const systemdTimeout = 5 * time.Second

// unitRoles are whose daemons the package's units start.
var unitRoles = []Role{RoleController, RoleLB, RoleAgent}

// unitFacts are a unit of systemd that does not stay up.
type unitFacts struct {
	Role     Role
	Restarts int
	Last     string // line of its journal that the daemon wrote; empty: the journal cannot be read, or has none
}

func unitName(role Role) string { return "ballast-" + string(role) }

// gatherUnits asks systemd, where it runs.
func gatherUnits(ctx context.Context) (failing []unitFacts) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, systemdTimeout)
	defer cancel()
	for _, role := range unitRoles {
		out, err := outputOf(exec.CommandContext(ctx, "systemctl", "show", unitName(role), "--property=ActiveState,SubState,NRestarts"))
		if err != nil {
			return nil
		}
		restarts, fails := parseUnit(string(out))
		if !fails {
			continue
		}
		last, _ := outputOf(exec.CommandContext(ctx, "journalctl", "--unit", unitName(role), "--identifier=ballast", "--lines=1", "--output=cat", "--no-pager", "--quiet"))
		failing = append(failing, unitFacts{role, restarts, strings.TrimSpace(string(last))})
	}
	return failing
}

// parseUnit reads what `systemctl show` prints. A unit that was stopped on purpose does not fail.
func parseUnit(text string) (restarts int, fails bool) {
	is := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		is[key] = value
	}
	restarts, _ = strconv.Atoi(is["NRestarts"])
	switch is["ActiveState"] {
	case "failed":
		return restarts, true
	case "activating", "deactivating":
		return restarts, restarts > 0 || is["SubState"] == "auto-restart"
	}
	return restarts, false
}

// failing is the unit of a role that does not stay up, or nil.
func (f *facts) failing(role Role) *unitFacts {
	for i := range f.Units {
		if f.Units[i].Role == role {
			return &f.Units[i]
		}
	}
	return nil
}

// failingRole is that of the one unit that does not stay up, if that is sure.
func (f *facts) failingRole() Role {
	lb, agent := f.failing(RoleLB), f.failing(RoleAgent)
	switch {
	case lb != nil && agent == nil:
		return RoleLB
	case agent != nil && lb == nil:
		return RoleAgent
	}
	return RoleUnknown
}

// judgeUnits is about what systemd starts in vain.
func judgeUnits(f *facts) (out []Finding) {
	for _, u := range f.Units {
		found := "the daemon ends at every start"
		if u.Restarts > 0 {
			found += "; systemd has started it again " + model.Counted(u.Restarts, "time", "times")
		}
		if u.Last != "" {
			found += ". It says last: " + u.Last
		}
		out = append(out, Finding{"unit", unitName(u.Role), Problem, found,
			"correct what it says (all of it: journalctl -u " + unitName(u.Role) + " -n 20); its options are in /etc/default/" + unitName(u.Role)})
	}
	return out
}
