package doctor

import (
	"fmt"
	"strings"
)

// oldest Linux that everything but tcx works on.
const (
	oldestMajor = 6
	oldestMinor = 1
)

func ok(check, subject, format string, args ...any) Finding {
	return Finding{Check: check, Subject: subject, Severity: OK, Found: fmt.Sprintf(format, args...)}
}

func judgeFile(f *facts) (out []Finding) {
	file := &f.File
	if file.Path == "" {
		return []Finding{{"file", "", Warning, "no configuration file: only what needs none was checked", "name the fleet's file with -f"}}
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
		return out
	}
	out = append(out, ok("file", file.Path, "%d services, valid", len(file.Fleet.Services)))
	for i := range file.Fleet.Services {
		s := &file.Fleet.Services[i]
		highest, fresh := uint16(0), 0
		for j := range s.Servers {
			highest = max(highest, s.Servers[j].ID)
			if s.Servers[j].TakesNew() {
				fresh++
			}
		}
		if fresh == 0 {
			out = append(out, Finding{"servers", s.Name, Problem, "no server takes new connections: all are draining or of weight 0",
				"set state: active and a weight above 0 on at least one server"})
		}
		// Ids of removed servers rest: a service that changes often needs more of them than it has servers.
		if left := int(s.MaxID()) - len(s.Servers); left < len(s.Servers)/2 || left == 0 {
			out = append(out, Finding{"server ids", s.Name, Warning,
				fmt.Sprintf("%d servers of at most %d ids: ids of removed servers rest before they are used again", len(s.Servers), s.MaxID()),
				"use more cookie_bits in a service of a new name and address"})
		}
	}
	return out
}

func judgeKernel(f *facts) []Finding {
	k := &f.Kernel
	found := fmt.Sprintf("Linux %d.%d", k.Major, k.Minor)
	if k.Major < oldestMajor || k.Major == oldestMajor && k.Minor < oldestMinor {
		return []Finding{{"kernel", "", Problem, found, fmt.Sprintf("use Linux %d.%d or newer (agents: 6.6)", oldestMajor, oldestMinor)}}
	}
	return []Finding{ok("kernel", "", "%s", found)}
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
		if feature.Err != nil {
			remedy := "use Linux " + feature.Since + " or newer"
			if strings.HasPrefix(feature.Name, "BTF") {
				remedy = "use a kernel with CONFIG_DEBUG_INFO_BTF=y"
			}
			out = append(out, Finding{"kernel features", feature.Name, Problem, feature.Err.Error(), remedy})
		}
	}
	if len(out) == 0 && len(f.Kernel.Features) > 0 {
		out = append(out, ok("kernel features", "", "all %d that are needed", len(f.Kernel.Features)))
	}
	return out
}

func judgePrograms(f *facts) []Finding {
	switch {
	case len(f.Kernel.Missing) > 0:
		return nil
	case f.Kernel.Load != nil:
		text, _, _ := strings.Cut(f.Kernel.Load.Error(), "\n")
		return []Finding{{"programs", "", Problem, text,
			"see the kernel features above; with kernel lockdown (confidentiality) BPF may not read kernel memory: boot without it"}}
	}
	return []Finding{ok("programs", "", "the kernel accepts and loads them")}
}

// judgePlumbing is about what the daemons need of the kernel beside BPF itself.
func judgePlumbing(f *facts) (out []Finding) {
	if k := &f.Kernel; len(k.Missing) == 0 {
		if k.BPFFS != nil {
			out = append(out, Finding{"bpffs", "", Problem, k.BPFFS.Error(),
				"start outside the container, or mount one for it: mount -t bpf bpf RUN_DIR/bpf"})
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

// judgeClock: cookies know no wall clock. A load balancer reckons by it only how long removed servers have been silent.
func judgeClock(f *facts) []Finding {
	if f.Role != RoleLB {
		return nil
	}
	if !f.Kernel.Synchronised {
		return []Finding{{"clock", "", Warning,
			"not synchronised: cookies do not depend on it, but a leap forward ends the rest of removed servers' ids early",
			"run chrony or systemd-timesyncd"}}
	}
	return []Finding{ok("clock", "", "synchronised")}
}

func judgeDaemon(f *facts) (out []Finding) {
	d, subject := &f.Daemon, string(f.Role)
	for instance, names := range d.Others {
		for _, name := range names {
			for _, own := range f.Devices {
				if own.Name == name {
					out = append(out, Finding{"instances", name, Problem, "instance " + instance + " runs on this interface too",
						"stop one of them and detach it: ballast " + subject + " --detach --instance " + instance})
				}
			}
		}
	}
	switch {
	case !d.SocketThere && d.Pinned, d.SocketThere && d.Err != nil && d.Pinned:
		return append(out, Finding{"daemon", subject, Warning, "does not answer; its data path goes on as it was",
			"start it again with the same --instance: it takes over; or remove the data path with --detach"})
	case !d.SocketThere:
		return append(out, Finding{"daemon", subject, Warning, "does not run yet", "ballast " + subject + " -f FILE"})
	case d.Err != nil:
		return append(out, Finding{"daemon", subject, Problem, d.Err.Error(), "read its log; start it again"})
	case d.Role != f.Role:
		return append(out, Finding{"daemon", subject, Problem, "the instance is a daemon of role " + string(d.Role),
			"give this one an --instance of its own"})
	case !d.Ready:
		return append(out, Finding{"daemon", subject, Problem, "runs and is not ready", "read its log"})
	}
	if d.Refused != "" {
		out = append(out, Finding{"daemon", subject, Problem, "refused the file and goes on with the one before: " + d.Refused, "correct the file"})
	} else if f.File.Err == nil && f.File.SHA256 != "" && f.File.SHA256 != d.SHA256 {
		out = append(out, Finding{"daemon", subject, Problem,
			fmt.Sprintf("runs by %s (sha256 %.8s), which is not this file (%.8s)", d.Path, d.SHA256, f.File.SHA256),
			"ballast ctl config reload, or start it with this file"})
	}
	for _, problem := range d.Problems {
		what, remedy := splitRemedy(problem)
		out = append(out, Finding{"daemon", subject, Problem, "reports: " + what, remedy})
	}
	if len(out) == 0 {
		out = append(out, ok("daemon", subject, "ready, by %s", d.Path))
	}
	return out
}

// splitRemedy takes "what: remedy" apart at the last colon that a space follows.
func splitRemedy(text string) (what, remedy string) {
	if at := strings.LastIndex(text, ": "); at > 0 {
		return text[:at], text[at+2:]
	}
	return text, "see the daemon's log"
}
