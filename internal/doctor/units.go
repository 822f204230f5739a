package doctor

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
)

const (
	systemdTimeout = 5 * time.Second
	journalLines   = "20"
)

// unitRoles are whose daemons the package's units start.
var unitRoles = []Role{RoleController, RoleLB, RoleAgent}

// unitFacts are a unit of systemd that does not stay up, or should run.
type unitFacts struct {
	Role     Role
	Instance string // that its daemon is; empty: unknown
	Expected bool   // it starts with the machine, and has options
	Fails    bool
	Restarts int
	Last     string // what the daemon wrote to the journal last of why; empty: that cannot be read, or there is nothing
}

func unitName(role Role) string { return "ballast-" + string(role) }

func journalOf(role Role) string { return "journalctl -u " + unitName(role) }

func readLog(role Role) string { return "read its log (" + journalOf(role) + ")" }

// gatherUnits asks systemd, where it runs, about the units whose daemons use a run directory.
func gatherUnits(ctx context.Context, runDir string) (units []unitFacts) {
	if _, err := os.Stat("/run/systemd/system"); err != nil || runDir != api.RunDir {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, systemdTimeout)
	defer cancel()
	for _, role := range unitRoles {
		unit := unitName(role)
		out, err := outputOf(exec.CommandContext(ctx, "systemctl", "show", unit, "--property=ActiveState,SubState,NRestarts,UnitFileState"))
		if err != nil {
			return units
		}
		defaults, unread := os.ReadFile("/etc/default/" + unit)
		u := unitFacts{Role: role, Instance: instanceOf(role, string(defaults))}
		var enabled bool
		u.Restarts, u.Fails, enabled = parseUnit(string(out))
		u.Expected = enabled && unread == nil
		if u.Fails {
			journal, _ := outputOf(exec.CommandContext(ctx, "journalctl", "--unit", unit, "--identifier=ballast", "--lines="+journalLines, "--output=cat", "--no-pager", "--quiet"))
			u.Last = lastReason(string(journal))
		}
		if u.Fails || u.Expected {
			units = append(units, u)
		}
	}
	return units
}

// instanceOf reads the file of a unit's variables. A controller's instance is its name.
func instanceOf(role Role, defaults string) (instance string) {
	if role == RoleController {
		words := strings.FieldsFunc(defaults, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`"'=`, r) })
		if i := slices.Index(words, "--name"); i >= 0 && i+1 < len(words) {
			instance = words[i+1]
		}
		return instance
	}
	instance = "default"
	for line := range strings.Lines(defaults) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "INSTANCE="); ok {
			instance = strings.Trim(value, `"'`)
		}
	}
	return instance
}

// lastReason finds in lines of a journal why a daemon ended: what the command failed with, of several lines or not, or a crash.
func lastReason(journal string) string {
	lines := strings.Split(strings.TrimSpace(journal), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		switch line := lines[i]; {
		case strings.HasPrefix(line, "ballast: "):
			end := i + 1
			for end < len(lines) && end < i+3 && !strings.HasPrefix(lines[end], "time=") && !strings.HasPrefix(lines[end], "{") {
				end++
			}
			return strings.Join(lines[i:end], "; ")
		case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "), strings.HasPrefix(line, "SIG"):
			return "it crashed: " + line
		}
	}
	return lines[len(lines)-1]
}

// parseUnit reads what `systemctl show` prints. A unit that was stopped on purpose does not fail.
func parseUnit(text string) (restarts int, fails, enabled bool) {
	is := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		is[key] = value
	}
	restarts, _ = strconv.Atoi(is["NRestarts"])
	switch is["ActiveState"] {
	case "failed":
		fails = true
	case "activating":
		fails = restarts > 0 || is["SubState"] == "auto-restart"
	}
	return restarts, fails, is["UnitFileState"] == "enabled"
}

// failing is the unit of a role and of this instance that does not stay up, or nil.
func (f *facts) failing(role Role) *unitFacts {
	for i := range f.Units {
		if f.Units[i].Fails && f.Units[i].Role == role && f.Units[i].Instance == f.Instance {
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

// judgeUnits is about daemons that systemd starts again and again.
func judgeUnits(f *facts) (out []Finding) {
	for _, u := range f.Units {
		if !u.Fails {
			continue
		}
		found := "is not up"
		if u.Restarts > 0 {
			found += ", and was started again " + model.Counted(u.Restarts, "time", "times")
		}
		if u.Last != "" {
			found += ". Its last line: " + u.Last
		}
		out = append(out, Finding{"unit", unitName(u.Role), Problem, found,
			"read why: " + journalOf(u.Role) + " -n " + journalLines + "; its options are in /etc/default/" + unitName(u.Role)})
	}
	return out
}
