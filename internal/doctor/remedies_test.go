package doctor_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/cli"
	"github.com/ballast-lb/ballast/internal/doctor"
)

// TestMain is also the ballast command that remedies name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "ballast" {
		os.Exit(cli.Main("test", os.Args[1:], os.Stderr))
	}
	os.Exit(m.Run())
}

// Remedies read "where it is: command, or something else". Words in capitals are the reader's to replace.
var (
	programs    = []string{"ip", "sysctl", "ethtool", "ballast"}
	placeholder = regexp.MustCompile(`\b[A-Z]{2,}\b`)
)

func commandOf(remedy string) (where, command string) {
	command, _, _ = strings.Cut(remedy, ", ")
	if i := strings.LastIndex(command, ": "); i >= 0 {
		where, command = command[:i], command[i+2:]
	}
	if program, _, _ := strings.Cut(command, " "); !slices.Contains(programs, program) || placeholder.MatchString(command) {
		return where, ""
	}
	return where, command
}

// Whoever copies a remedy from the terminal into a shell has mended what it is about.
func TestRemediesWorkAsPrinted(t *testing.T) {
	for _, program := range []string{"ip", "sysctl", "ethtool"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("remedies need it:", err)
		}
	}
	executable, err := os.Executable()
	must(t, err)
	bin := t.TempDir()
	must(t, os.Symlink(executable, filepath.Join(bin, "ballast")))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))

	s := newSite(t)
	healthy := map[doctor.Role][]string{}
	for _, role := range []doctor.Role{doctor.RoleLB, doctor.RoleAgent} {
		for _, f := range s.examine(t, role) {
			healthy[role] = append(healthy[role], line(f))
		}
	}
	wrong := func(b *breakage) (found []doctor.Finding) {
		for _, f := range s.examine(t, b.role) {
			if f.Severity != doctor.OK && !slices.Contains(healthy[b.role], line(f)) {
				found = append(found, f)
			}
		}
		return found
	}
	applied := map[string]bool{}
	for _, b := range breakages() {
		t.Run(b.name, func(t *testing.T) {
			b.breakIt(t, s)
			defer b.mend(t, s)
			for _, f := range wrong(&b) {
				where, command := commandOf(f.Remedy)
				if command == "" {
					t.Log("no command: ", f.Remedy)
					return
				}
				role := b.role
				if where != "" {
					role = doctor.RoleAgent // the other end of the link
				}
				s.run(t, role, "", "sh", "-c", command)
				program, _, _ := strings.Cut(command, " ")
				applied[f.Check+": "+program] = true
			}
			for _, f := range wrong(&b) {
				t.Errorf("still: %s", line(f))
			}
		})
	}
	for _, remedy := range []string{"vip: ip", "timestamps: sysctl", "rp_filter: sysctl", "arp: sysctl", "forwarding: sysctl", "veth: ballast", "veth: ethtool",
		"xdp: ip", "mtu: ip"} {
		if !applied[remedy] {
			t.Errorf("%s: no such remedy could be run", remedy)
		}
	}
}
