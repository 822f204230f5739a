package doctor_test

import (
	"fmt"
	"os/exec"
	"slices"
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

// What kube-proxy makes of a service with externalTrafficPolicy Local, in its mode nftables: pods and the node itself go to an endpoint of any node
// (10.78.2.2), clients to one of this node (10.78.1.2). Earlier releases have a chain for each endpoint, 1.37 a map of them: kubeProxy137 is what
// test/kubernetes had it write, with other addresses.
const kubeProxy = `table ip kube-proxy {
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 10.96.0.5 . tcp . 80 : goto service-web,
			198.51.100.10 . tcp . 80 : goto external-web,
			198.51.100.99 . tcp . 80 : goto external-other }
	}
	chain endpoint-a { ip saddr 10.78.1.2 jump mark-for-masquerade; meta l4proto tcp dnat to 10.78.1.2:8080; }
	chain endpoint-b { ip saddr 10.78.2.2 jump mark-for-masquerade; meta l4proto tcp dnat to 10.78.2.2:8080; }
	chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
	chain service-web { numgen random mod 2 vmap { 0 : goto endpoint-b, 1 : goto endpoint-a }; }
	chain external-web {
		ip saddr 10.78.0.0/16 goto service-web
		fib saddr type local jump mark-for-masquerade
		fib saddr type local goto service-web
		numgen random mod 1 vmap { 0 : goto endpoint-a }
	}
	chain external-other { meta l4proto tcp dnat to 10.78.1.9:9090; }
	chain services {
		ip daddr . meta l4proto . th dport vmap @service-ips
		ip daddr { 203.0.113.0 } fib daddr type local accept
	}
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
}
`

const kubeProxy137 = `table ip kube-proxy {
	set cluster-ips { type ipv4_addr; elements = { 10.96.0.1, 10.96.0.5 }; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 10.96.0.5 . tcp . 80 : goto service-SUSTUHLJ-default/web/tcp/http,
			198.51.100.10 . tcp . 80 : goto external-SUSTUHLJ-default/web/tcp/http,
			10.96.0.1 . tcp . 443 : goto service-2QRHZV4L-default/kubernetes/tcp/https }
	}
	chain service-SUSTUHLJ-default/web/tcp/http {
		meta l4proto tcp dnat ip to numgen random mod 2 map { 0 : 10.78.2.2 . 8080, 1 : 10.78.1.2 . 8080 }
	}
	chain local-SUSTUHLJ-default/web/tcp/http { meta l4proto tcp dnat to 10.78.1.2:8080; }
	chain external-SUSTUHLJ-default/web/tcp/http {
		ip saddr 10.78.0.0/16 goto service-SUSTUHLJ-default/web/tcp/http comment "short-circuit pod traffic"
		fib saddr type local meta mark set meta mark | 0x00004000 comment "masquerade local traffic"
		fib saddr type local goto service-SUSTUHLJ-default/web/tcp/http comment "short-circuit local traffic"
		goto local-SUSTUHLJ-default/web/tcp/http
	}
	chain service-2QRHZV4L-default/kubernetes/tcp/https { meta l4proto tcp dnat to 10.60.0.20:7443; }
	chain services {
		ip daddr @cluster-ips ip saddr != 10.78.0.0/16 meta mark set meta mark | 0x00004000 comment "masquerade clusterIP traffic from outside cluster"
		ip daddr . meta l4proto . th dport vmap @service-ips
	}
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain filter-prerouting-pre-dnat { type filter hook prerouting priority dstnat - 10; ct state new jump firewall-check; }
	chain filter-forward { type filter hook forward priority filter; ct state new jump service-endpoints-check; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
}
`

// A node of Kubernetes has its VIPs nowhere: rules are read to their ends, and nothing contradicts what the agent has seen.
func TestDoctorOnANodeOfKubernetes(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nftables:", err)
	}
	s := newSite(t)
	s.run(t, doctor.RoleAgent, "", "ip", "address", "del", "198.51.100.10/32", "dev", "lo")
	of := func() (lines []string) {
		for _, f := range s.examine(t, doctor.RoleAgent) {
			if slices.Contains([]string{"vip", "listener", "translation"}, f.Check) && f.Subject != "flat" && f.Subject != "198.51.100.11" {
				lines = append(lines, line(f))
			}
		}
		return lines
	}
	if have := of(); len(have) != 3 || !strings.HasPrefix(have[0], "problem vip 198.51.100.10: not an address of this host: it does not take the service's packets") {
		t.Errorf("without rules: %q", have)
	}
	for _, rules := range []string{kubeProxy, kubeProxy137} {
		s.run(t, doctor.RoleAgent, "flush ruleset\n"+rules, "nft", "-f", "-")
		have := strings.Join(of(), "\n")
		for _, want := range []string{"warning vip 198.51.100.10: not an address of this host: rules of nftables take its packets", "ok listener web",
			"ok translation web: a rule of nftables takes tcp port 80 elsewhere (dnat to 10.78.1.2:8080)"} {
			if !strings.Contains(have, want) {
				t.Errorf("no %q in:\n%s\nby %s", want, have, rules)
			}
		}
	}
}
