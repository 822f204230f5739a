package doctor

import "context"

// Options say what to examine.
type Options struct {
	Config     string // path of the fleet's file; empty: the one that the daemon runs by, else only what needs no file is checked
	Role       Role
	Server     string   // name of this host's server entries; empty: those whose address is local
	Name       string   // of this load balancer among the fleet's nodes; empty: that of the daemon, else of the host
	Interfaces []string // empty: those of the daemon, else those that it would take
	Instance   string
	RunDir     string
	StateDir   string
	Verbose    bool // what the verifier says of a program that it rejects follows the first line of Found
	// Doing is told what is waited for, from several goroutines; nil: nobody is.
	Doing func(what string)
}

func (o *Options) doing(what string) {
	if o.Doing != nil {
		o.Doing(what)
	}
}

// judges in the order in which findings are shown: what others depend on comes first.
var judges = []func(*facts) []Finding{
	judgeRole, judgeFile, judgeStates, judgeKernel, judgePrivileges, judgeFeatures, judgePrograms, judgePlumbing, judgeClock,
	judgeDevices, judgePaths, judgePredecessors, judgeFiltered, judgeExits, judgeTier, judgeBGP, judgeReplicas, judgeServerClocks, judgeForwarding,
	judgeIdentity, judgeGateways, judgeTunnels, judgeVIPs, judgeTimestamps, judgeMPTCP, judgeSessions, judgeBack, judgeEgress, judgeReversePath, judgeARP, judgeReturnMTU, judgeListeners,
	judgeTranslation,
	judgeDrained, judgeUnits, judgeDaemon,
}

// Examine gathers facts in the calling thread's network namespace and judges them. Nothing is changed: no program is attached, nothing
// is mounted, and servers see no more than a connection attempt.
func Examine(ctx context.Context, o Options) []Finding {
	_, findings := examine(ctx, o, gatherDaemon(ctx, o), gatherUnits(ctx, o.RunDir))
	return findings
}

func examine(ctx context.Context, o Options, daemon daemonFacts, units []unitFacts) (Role, []Finding) {
	if daemon.Role == RoleController || daemon.Role == RoleUnknown && expectedRole(o.Instance, units) == RoleController {
		return RoleController, judgeController(&facts{Instance: o.Instance, Role: RoleController, Daemon: daemon, Units: units})
	}
	f := gather(ctx, o, daemon, units)
	findings := []Finding{}
	for _, judge := range judges {
		findings = append(findings, judge(f)...)
	}
	return f.Role, merged(findings)
}
