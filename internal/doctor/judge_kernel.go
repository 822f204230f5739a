package doctor

import (
	"fmt"
	"strings"
)

func ok(check, subject, format string, args ...any) Finding {
	return Finding{Check: check, Subject: subject, Severity: OK, Found: fmt.Sprintf(format, args...)}
}

func judgeFile(f *facts) (out []Finding) {
	file := &f.File
	if file.Path == "" && !file.known() {
		if f.Role == RoleUnknown || len(f.Kept.States) > 0 { // judgeRole and judgeStates say what is missing
			return nil
		}
		return []Finding{{"file", "", Warning, "neither a daemon nor a file has the configuration of this host: services were not checked",
			"name the file that the daemon runs by with -f; if it runs by controllers, start it"}}
	}
	if file.Err != nil {
		remedy := "correct the file; a running daemon goes on with what it has"
		list := []error{file.Err}
		if joined, ok := file.Err.(interface{ Unwrap() []error }); ok {
			list = joined.Unwrap()
		}
		for _, err := range list {
			out = append(out, Finding{"file", file.Path, Problem, err.Error(), remedy})
		}
	}
	if file.Exposed != "" {
		what, remedy := splitRemedy(file.Exposed)
		out = append(out, Finding{"file", file.Path, Warning, what, remedy})
	}
	switch {
	case file.Running && f.Daemon.ByControllers && file.Path != "":
		out = append(out, Finding{"file", file.Path, Warning, "this host runs by controllers and not by this file: what runs was checked",
			"leave out -f; `ballast ctl --controller ... apply -f FILE --dry-run` shows how the file differs"})
	case file.Kept != "":
		out = append(out, ok("state", file.Kept, "services as they ran last: %d", len(file.Fleet.Services)))
	case file.Running && f.Daemon.ByControllers && len(file.Fleet.Services) == 0: // judgeDaemon tells why
	case file.Running:
		out = append(out, ok("state", f.Daemon.source(), "services that run: %d", len(file.Fleet.Services)))
	case file.Err == nil:
		out = append(out, ok("file", file.Path, "valid; services: %d", len(file.Fleet.Services)))
	}
	for i := range file.Fleet.Services {
		s := &file.Fleet.Services[i]
		highest, fresh := uint16(0), 0
		for j := range s.Servers {
			highest = max(highest, s.Servers[j].ID)
			if s.Servers[j].TakesNew() {
				fresh++
			}
		}
		switch {
		case fresh > 0, file.Fleet.OnlyReturns(s):
		case len(s.Servers) == 0:
			out = append(out, Finding{"servers", s.Name, Problem, "it has no servers: every connection to it fails",
				fmt.Sprintf("add one, in the file or by `ballast ctl server add %s ADDRESS`, or remove the service", s.Name)})
		default:
			out = append(out, Finding{"servers", s.Name, Problem, "no server takes new connections: all are draining or of weight 0",
				"set state: active and a weight above 0 on at least one server"})
		}
		// Ids of removed servers rest: a service that changes often needs more of them than it has servers.
		if left := int(s.MaxID()) - len(s.Servers); left < len(s.Servers)/2 || left == 0 {
			out = append(out, Finding{"server ids", s.Name, Warning,
				fmt.Sprintf("%d servers of at most %d ids: ids of removed servers rest before they are used again", len(s.Servers), s.MaxID()),
				"use more cookie_bits, or mptcp.ports where that is less, in a service of a new name and address"})
		}
	}
	return out
}

// judgeKernel compares no versions: distributions bring features to old kernels. What the kernel can do is probed.
func judgeKernel(f *facts) []Finding {
	return []Finding{ok("kernel", "", "Linux %s", f.Kernel.Release)}
}

func judgePrivileges(f *facts) []Finding {
	if missing := f.Kernel.Missing; len(missing) > 0 {
		return []Finding{{"privileges", "", Problem, "missing " + strings.Join(missing, ", ") + "; what the kernel can do was not probed",
			"run as root, or with these capabilities"}}
	}
	return []Finding{ok("privileges", "", "all capabilities that are needed")}
}

func judgeFeatures(f *facts) (out []Finding) {
	for _, feature := range f.Kernel.Features {
		if feature.Err == nil {
			continue
		}
		finding := Finding{"kernel features", feature.Name, Problem, firstLine(feature.Err), "use Linux " + feature.Since + " or newer"}
		if feature.Without != "" {
			finding.Severity, finding.Found = Warning, finding.Found+": "+feature.Without
		}
		if strings.HasPrefix(feature.Name, "BTF") {
			finding.Remedy = "use a kernel with CONFIG_DEBUG_INFO_BTF=y"
		}
		out = append(out, finding)
	}
	if len(out) == 0 && len(f.Kernel.Features) > 0 {
		out = append(out, ok("kernel features", "", "all %d that are used", len(f.Kernel.Features)))
	}
	return out
}

func judgePrograms(f *facts) []Finding {
	switch {
	case len(f.Kernel.Missing) > 0:
		return nil
	case f.Kernel.Load != nil:
		finding := Finding{"programs", "", Problem, firstLine(f.Kernel.Load),
			"see the kernel features above; with kernel lockdown (confidentiality) BPF may not read kernel memory: boot without it"}
		if log := f.Kernel.Rejected; log != nil {
			finding.Remedy = "this kernel's verifier rejects the program: report it, with what ballast doctor --verbose prints, and use a kernel that the README names"
			if f.Verbose {
				finding.Found += "\n" + strings.Join(log, "\n")
			}
		}
		return []Finding{finding}
	}
	return []Finding{ok("programs", "", "the kernel accepts and loads them")}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// judgePlumbing is about what the daemons need of the kernel beside BPF itself.
func judgePlumbing(f *facts) (out []Finding) {
	if k := &f.Kernel; len(k.Missing) == 0 {
		if k.BPFFS != nil {
			out = append(out, Finding{"bpffs", "", Problem, k.BPFFS.Error(),
				"start outside the container, or mount one for it: mount -t bpf bpf RUN_DIR/bpf"})
		} else if f.Daemon.hidden() {
			out = append(out, Finding{"bpffs", "", Warning, "the daemon runs in a mount namespace of its own: its pins are not seen here, the data path ends with it, and nothing can be taken over",
				"start the daemon again in the host's mount namespace (nsenter --net=/run/netns/NAME instead of ip netns exec; no PrivateTmp= and the like), or mount bpf there first"})
		} else if k.PrivatePins != "" {
			what, remedy, _ := strings.Cut(k.PrivatePins, "taken over: ")
			out = append(out, Finding{"bpffs", "", Warning, what + "taken over", remedy})
		} else {
			out = append(out, ok("bpffs", "", "can be mounted"))
		}
	}
	if f.Role == RoleLB {
		if f.Kernel.Grace != nil {
			out = append(out, Finding{"membarrier", "", Problem, f.Kernel.Grace.Error(),
				"boot without nohz_full=, and let the process call membarrier(2): changes of the tables wait with it"})
		} else {
			out = append(out, ok("membarrier", "", "changes of the tables can wait for packets under way"))
		}
	}
	if f.Kernel.JIT == 0 {
		out = append(out, Finding{"BPF JIT", "", Warning, "programs are interpreted: several times slower", "sysctl -w net.core.bpf_jit_enable=1"})
	}
	return out
}

// judgeClock: cookies know no wall clock. A load balancer reckons by it only how long removed servers have been silent, and how old handshakes are that it has
// begun; so do servers that take these over.
func judgeClock(f *facts) []Finding {
	sessions := f.sessions()
	switch {
	case f.Role != RoleLB && !sessions:
		return nil
	case !f.Kernel.Synchronised && sessions:
		return []Finding{{"clock", "", Warning,
			"not synchronised: where it differs by more than 32 s between load balancers and servers, no connection of services with session: tls begins",
			"run chrony or systemd-timesyncd"}}
	case !f.Kernel.Synchronised:
		return []Finding{{"clock", "", Warning,
			"not synchronised: cookies do not depend on it, but a leap forward ends the rest of removed servers' ids early",
			"run chrony or systemd-timesyncd"}}
	}
	return []Finding{ok("clock", "", "synchronised")}
}
