package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
)

// reloadBy is what a daemon's refusal of its file says takes it all the same.
var reloadBy = regexp.MustCompile("config reload( --" + api.Force + "| --" + api.AllowRemove + ")+")

// judgeRole says when nothing tells what this host is: it guesses nothing.
func judgeRole(f *facts) []Finding {
	if f.Role != RoleUnknown {
		return nil
	}
	return []Finding{{"role", "", Warning, "unknown: no daemon answers, and none of this instance has left anything: only what load balancers and servers have in common was checked",
		"say --role lb or --role agent, or -f FILE" + f.otherInstances()}}
}

func (f *facts) otherInstances() string {
	if len(f.Kept.Instances) == 0 {
		return ""
	}
	return "; or --instance with one that is here: " + strings.Join(f.Kept.Instances, ", ")
}

// judgeStates is about what the next daemon begins with. One that runs has read it.
func judgeStates(f *facts) (out []Finding) {
	if f.Daemon.SocketThere && f.Daemon.Err == nil {
		return nil
	}
	for _, state := range f.Kept.States {
		switch {
		case errors.Is(state.Err, fs.ErrPermission):
			out = append(out, Finding{"state", state.Path, Problem, "not looked at: " + state.Err.Error(), "run doctor as root"})
		case state.Err != nil:
			out = append(out, Finding{"state", state.Path, Problem, "cannot be used, and the daemon does not start with it: " + state.Err.Error(),
				"move the file away and start the daemon: by a file it begins with that alone, without what ctl changed and removed servers; " +
					"by controllers the data path stays as it is until one sends a state"})
		}
	}
	return out
}

// judgeAbsent is about a daemon that does not run. Where one has run, it is missed.
func (f *facts) judgeAbsent() []Finding {
	d, role := &f.Daemon, string(f.Role)
	unit := ""
	if f.Role != RoleUnknown {
		unit = " (systemctl start " + unitName(f.Role) + ")"
	}
	switch {
	case f.failing(f.Role) != nil:
		return nil // judgeUnits tells
	case d.Pinned:
		return []Finding{{"daemon", role, Problem, "does not run; the data path that it left goes on as it was: changes, failures of servers and of the network are not followed",
			"start it again, as it was started before" + unit + ": it takes the data path over"}}
	case d.Dead || len(f.Kept.States) > 0:
		return []Finding{{"daemon", role, Problem, "does not run, has run before, and has left no data path here", "start it again, as it was started before" + unit}}
	case f.Role == RoleUnknown:
		return nil
	case expectedRole(f.Instance, f.Units) == f.Role:
		return []Finding{{"daemon", role, Problem, "does not run, and its unit is enabled", "start it" + unit}}
	}
	return []Finding{{"daemon", role, Warning, "does not run yet", "ballast " + role + " -f FILE, or --controller HOST:PORT if it is configured by controllers" + f.otherInstances()}}
}

// judgeDrained is about what is well and serves nobody: an operator has drained it, or `ballast leave` before the machine joined again.
func judgeDrained(f *facts) (out []Finding) {
	const found, remedy = "draining: no new connections", "if it is to serve again: ballast ctl "
	if n := f.File.Fleet.Node(f.Name); f.Role == RoleLB && n != nil && n.State != model.StateActive {
		out = append(out, Finding{"drained", n.Name, Warning, found, remedy + "node undrain " + n.Name})
	}
	f.onServer(func(s *model.Service, server *model.Server) {
		switch {
		case slices.Contains(f.Daemon.Left, s.Name): // another one may have the name by now
			out = append(out, Finding{"drained", s.Name + " " + server.Address.String(), Warning, "removed from the service: no new connections, and those that are here stay until they end",
				"if it is to serve again: ballast ctl server add " + s.Name + " " + server.Address.String()})
		case server.State == model.StateDraining:
			out = append(out, Finding{"drained", s.Name + " " + server.Name, Warning, found, remedy + "server undrain " + s.Name + " " + server.Name})
		}
	})
	return out
}

func judgeDaemon(f *facts) (out []Finding) {
	d, subject := &f.Daemon, string(f.Role)
	switch {
	case !d.runs():
		return f.judgeAbsent()
	case d.Err != nil:
		return append(out, Finding{"daemon", subject, Problem, d.Err.Error(), readLog(f.Role) + "; start it again"})
	case d.Role != f.Role:
		return append(out, Finding{"daemon", subject, Problem, "the instance is a daemon of role " + string(d.Role),
			"give this one an --instance of its own"})
	}
	if d.Refused != "" {
		what, remedy := "refused the file and goes on with the one before: ", "correct the file"
		if how := reloadBy.FindString(d.Refused); how != "" {
			remedy += "; or, if it is right, " + api.Ctl(f.Instance) + " " + how
		}
		if d.ByControllers {
			what, remedy = "refused what controllers say and goes on with what it has: ", "change the fleet so that it is possible; upgrade this node if it is older than the controllers"
		}
		if d.RefusedSince != nil {
			what = "since " + d.RefusedSince.Format(time.RFC3339) + " " + what
		}
		out = append(out, Finding{"daemon", subject, Problem, what + d.Refused, remedy})
	} else if f.File.Err == nil && f.File.SHA256 != "" && f.File.SHA256 != d.SHA256 && !d.ByControllers {
		out = append(out, Finding{"daemon", subject, Problem,
			fmt.Sprintf("runs by %s (sha256 %.8s), which is not this file (%.8s)", d.Path, d.SHA256, f.File.SHA256),
			"name the daemon's own file; if that was changed and not read yet: " + api.Ctl(f.Instance) + " config reload"})
	}
	explained := map[string]bool{} // by judgeFiltered
	for i := range d.Filtered {
		explained[d.Filtered[i].Problem()] = true
	}
	out = append(out, f.problems(subject, explained)...)
	if len(explained) > 0 && len(out) == 0 {
		return nil
	}
	if len(out) == 0 && !d.Ready {
		return []Finding{{"daemon", subject, Problem, "runs and is not ready", readLog(f.Role)}}
	}
	if len(out) == 0 {
		out = append(out, ok("daemon", subject, "ready, by %s", d.source()))
	}
	return out
}

// source is where the daemon has its desired state from.
func (d *daemonFacts) source() string {
	if d.ByControllers {
		return cmp.Or(d.Path, "the last state of the controllers")
	}
	return d.Path
}

// splitRemedy takes "what: remedy" apart at the last colon that a space follows.
func splitRemedy(text string) (what, remedy string) {
	if at := strings.LastIndex(text, ": "); at > 0 {
		return text[:at], text[at+2:]
	}
	return text, "see the daemon's log"
}

// problems are those that a daemon has of itself, but for the explained ones.
func (f *facts) problems(subject string, explained map[string]bool) (out []Finding) {
	d := &f.Daemon
	for _, problem := range d.Problems {
		if explained[problem] {
			continue
		}
		found := "reports: " + problem
		if slices.Contains(d.NotReady, problem) {
			found = "is not ready: " + problem
		}
		remedy := "do what it says; `" + api.Ctl(f.Instance) + " status` shows when it is gone"
		if strings.HasPrefix(problem, "no controller is connected") {
			remedy = "read `controller not joined` in its log (" + journalOf(f.Role) + "): the network, the certificate (`ballast ctl pki show DIR`), or controllers that are down"
		}
		out = append(out, Finding{"daemon", subject, Problem, found, remedy})
	}
	return out
}
