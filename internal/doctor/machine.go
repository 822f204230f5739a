package doctor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/ballast-lb/ballast/internal/api"
)

// An Examined daemon is one of this machine, or that which will run.
type Examined struct {
	Instance string
	Role     Role      // unknown: nothing tells it
	Findings []Finding // what an earlier one has shown word for word is left out
}

// Machine examines every daemon of this machine, in the network namespace of the process: those that have a socket or a data path below the run directory, and those
// whose unit is enabled and has options. Where there is none, and none of the role that is asked for, it is the instance of the options; so it is if
// only that is wanted.
func Machine(ctx context.Context, o Options, only bool) (all []Examined) {
	units := gatherUnits(ctx, o.RunDir)
	daemons := map[string]daemonFacts{}
	names := []string{o.Instance}
	if !only {
		names = here(ctx, o, units, daemons)
	}
	all = make([]Examined, len(names))
	var examining sync.WaitGroup
	for i, name := range names {
		examining.Go(func() {
			one := o
			one.Instance = name
			daemon, asked := daemons[name]
			if !asked {
				daemon = gatherDaemon(ctx, one)
			}
			all[i].Instance = name
			all[i].Role, all[i].Findings = examine(ctx, one, daemon, units)
		})
	}
	examining.Wait()
	shown := map[Finding]bool{}
	for i := range all {
		all[i].Findings = slices.DeleteFunc(all[i].Findings, func(f Finding) bool {
			repeated := shown[f]
			shown[f] = f.Check != "daemon" // each daemon speaks for itself
			return repeated
		})
	}
	return all
}

// here names the instances to look at, and adds what their daemons answer.
func here(ctx context.Context, o Options, units []unitFacts, daemons map[string]daemonFacts) (names []string) {
	kept := gatherKept(o)
	there := kept.Instances
	if _, err := os.Stat(api.SocketPath(o.RunDir, o.Instance)); err == nil || kept.Pinned != RoleUnknown || len(kept.States) > 0 {
		there = append(there, o.Instance)
	}
	for i := range units {
		if u := &units[i]; u.Expected && u.Instance != "" {
			there = append(there, u.Instance)
		}
	}
	slices.Sort(there)
	wanted, forwards := o.Role == RoleLB || o.Role == RoleAgent, false
	for _, name := range slices.Compact(there) {
		one := o
		one.Instance = name
		daemons[name] = gatherDaemon(ctx, one)
		role := daemons[name].Role
		if role == RoleUnknown {
			kept := gatherKept(one)
			role = kept.role()
		}
		if role == RoleUnknown {
			role = expectedRole(name, units)
		}
		if wanted && role != o.Role && role != RoleUnknown {
			continue
		}
		forwards = forwards || role != RoleController
		names = append(names, name)
	}
	if len(names) == 0 || o.Config != "" && !forwards { // a file says what is to run
		names = append(names, o.Instance)
	}
	return names
}

// expectedRole is that of the one unit that should run an instance, if that is sure.
func expectedRole(instance string, units []unitFacts) (role Role) {
	for i := range units {
		u := &units[i]
		switch {
		case !u.Expected || u.Instance != instance:
		case role != RoleUnknown:
			return RoleUnknown
		default:
			role = u.Role
		}
	}
	return role
}

// judgeController is about a daemon that sees no packets: it says itself what it misses of the fleet.
func judgeController(f *facts) []Finding {
	if f.Daemon.Err == nil && f.Daemon.runs() && f.Daemon.Ready && len(f.Daemon.Problems) == 0 {
		return []Finding{ok("daemon", string(RoleController), "ready; how the fleet is: `%s node list`", api.Ctl(f.Instance))}
	}
	return append(judgeUnits(f), judgeDaemon(f)...)
}

// instancesOf are the instances that a pattern of paths below the run directory finds.
func instancesOf(pattern string) (names []string) {
	paths, _ := filepath.Glob(pattern)
	for _, path := range paths {
		names = append(names, filepath.Base(filepath.Dir(path)))
	}
	return names
}
