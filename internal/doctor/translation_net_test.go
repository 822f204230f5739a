package doctor_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/doctor"
)

// run runs a command in the namespace of the load balancer or the server.
func (s *site) run(t *testing.T, role doctor.Role, input string, command ...string) {
	t.Helper()
	space := s.lb
	if role == doctor.RoleAgent {
		space = s.server
	}
	must(t, space.Do(func() error {
		run := exec.Command(command[0], command[1:]...)
		run.Stdin = strings.NewReader(input)
		if out, err := run.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", command, err, out)
		}
		return nil
	}))
}

// The kernel's rules are read as they are: a redirect to the application's port is told, and is not "nothing listens".
func TestARedirectOfAServicesPortIsTold(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nftables:", err)
	}
	s := newSite(t)
	s.writeConfig(t, strings.ReplaceAll(fleet, "ports: [80]", "ports: [443]"))
	of := func(checks ...string) (lines []string) {
		for _, f := range s.examine(t, doctor.RoleAgent) {
			for _, check := range checks {
				if f.Check == check {
					lines = append(lines, line(f))
				}
			}
		}
		return lines
	}
	if have := of("listener", "translation"); len(have) != 3 || !strings.HasPrefix(have[0], "problem listener web: nothing listens on tcp port 443") ||
		!strings.HasPrefix(have[2], "ok translation") {
		t.Errorf("without rules: %q", have)
	}
	s.run(t, doctor.RoleAgent, `table inet t {
chain c {
type nat hook prerouting priority dstnat
ip daddr 198.51.100.10 tcp dport { 443, 8443 } redirect to :80
}
}
`, "nft", "-f", "-")
	have := of("listener", "translation")
	if len(have) != 3 || !strings.HasPrefix(have[0], "ok listener web") || !strings.HasPrefix(have[1], "problem listener flat") ||
		!strings.HasPrefix(have[2], "warning translation web: a rule of nftables takes tcp port 443 elsewhere (redirect to port 80)") {
		t.Errorf("with a redirect of one service's port: %q", have)
	}
	// A rule for the port takes connections away from the socket that is open there.
	s.writeConfig(t, fleet)
	s.run(t, doctor.RoleAgent, "add rule inet t c ip daddr 198.51.100.10 tcp dport 80 dnat ip to 10.99.0.2:81\n", "nft", "-f", "-")
	if have := of("listener"); len(have) != 2 || !strings.HasPrefix(have[0], "problem listener web: nothing listens where a rule of nftables takes tcp port 80 of "+
		"198.51.100.10 (dnat to 10.99.0.2:81)") || !strings.HasPrefix(have[1], "ok listener flat") {
		t.Errorf("with DNAT to a port that nothing listens on: %q", have)
	}
}
