package setup_test

import (
	"os"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/daemon/agent"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/pki"
)

// leaveArguments are those of ballast leave, kept to the machine's own files.
func (m *machine) leaveArguments(more ...string) []string {
	return append([]string{"leave", "--tls-dir", m.path("tls"), "--defaults-dir", m.path("default"), "--run-dir", m.path("run"), "--state-dir", m.path("state"), "--no-stop"}, more...)
}

// joined makes a machine an agent that is connected, and returns how to end its daemon.
func joined(t *testing.T, c, node *machine) (kill func()) {
	t.Helper()
	node.must(append(strings.Fields(c.invite("agent").Command)[1:], append(node.files(), "--name", node.name, "--interface", "eth0")...)...)
	fleettest.Require(t, pin.EnsureBPFFS(node.path("run", "bpf")))
	t.Cleanup(func() { // where it has not left
		node.space.Do(func() error {
			return agent.Detach(agent.Options{RunDir: node.path("run"), Instance: "default", Log: fleettest.Log(t)}, func(string) error { return nil })
		})
	})
	kill = node.start("ballast-agent", "--state-dir", node.path("state"))
	await.Nil(t, "the agent has a state", func() error { _, err := os.Stat(node.path("state", "default", "agent.json")); return err })
	return kill
}

const leavingFleet = `services:
  - name: web
    vip: 198.51.100.1
    ports: [80]
    health: {check: none}
    servers:
      - {name: s1, address: 10.9.0.2}
      - {name: s2, address: 10.9.0.3}
`

// controlled are a controller and another machine.
func controlled(t *testing.T) (c, node *machine, end func()) {
	t.Helper()
	c, node = newMachine(t, "c1"), newMachine(t, "s1")
	connect(t, c, node, "10.9.0.1/24", "10.9.0.2/24")
	c.initialize()
	end = c.start("ballast-controller")
	await.Nil(t, "the controller has the signing authority", func() error {
		_, err := c.run(c.ctl("pki", "delegate", c.path("authority"), "--yes")...)
		return err
	})
	fleettest.Require(t, os.WriteFile(c.path("fleet.yaml"), []byte(leavingFleet), 0o644))
	c.must(c.ctl("apply", "-f", c.path("fleet.yaml"), "--yes")...)
	return c, node, end
}

// Promise: A machine that leaves is drained, revoked and forgotten, and nothing of a node is left on it; before it is asked to, nothing is changed.
func TestAMachineLeaves(t *testing.T) {
	c, node, _ := controlled(t)
	if said := node.must(node.leaveArguments("--yes")...); said != "this machine is no node: there is nothing to do\n" {
		t.Errorf("of no fleet: %s", said)
	}
	kill := joined(t, c, node)
	before := contents(t, node.path("tls")) + contents(t, node.path("default"))
	said := node.must(node.leaveArguments("--dry-run")...)
	for _, wanted := range []string{"agent s1 leaves:\n  it is drained by controllers 10.9.0.1:6443\n    server s1 of web (active): ", "nothing was changed", node.path("default", "ballast-agent"), node.path("tls", "ca.crt"),
		node.path("tls", "s1.key"), node.path("state", "default", "agent.json"), "the data path of instance default is removed", "its certificate is revoked"} {
		if !strings.Contains(said, wanted) {
			t.Errorf("a dry run does not say %q: %s", wanted, said)
		}
	}
	if _, err := node.run(node.leaveArguments()...); err == nil || !strings.Contains(err.Error(), "say --yes") {
		t.Errorf("without a terminal: %v", err)
	}
	if _, err := node.run(node.leaveArguments("lb", "--yes")...); err != nil {
		t.Errorf("as a load balancer, which it is not: %v", err)
	}
	if after := contents(t, node.path("tls")) + contents(t, node.path("default")); after != before {
		t.Fatalf("it has changed\n%s to\n%s", before, after)
	}
	if out := c.must(c.ctl("server", "list", "-o", "json")...); strings.Contains(out, "draining") {
		t.Fatalf("a server drains: %s", out)
	}
	if out, err := node.run(node.leaveArguments("--yes", "--deadline", "3s")...); err == nil || !strings.Contains(err.Error(), "its daemon (instance default) runs: end it") {
		t.Errorf("while the daemon runs: %v: %s", err, out)
	}
	if out := c.must(c.ctl("server", "list", "-o", "json")...); strings.Count(out, "draining") != 1 {
		t.Errorf("its server does not drain: %s", out)
	}
	kill()
	said = node.must(node.leaveArguments("--yes")...)
	for _, wanted := range []string{"agent s1: forgotten", "revoked: the certificate of agent s1 with serial number ", "agent s1 has left", "remains to do: `ballast ctl server remove web s1`, and out of the fleet's file"} {
		if !strings.Contains(said, wanted) {
			t.Errorf("it does not say %q: %s", wanted, said)
		}
	}
	for _, dir := range []string{"tls", "default", "state", "run"} {
		if left := contents(t, node.path(dir)); left != "" {
			t.Errorf("it has left %s", left)
		}
	}
	if out := c.must(c.ctl("node", "list", "-o", "json")...); strings.Contains(out, `"s1"`) {
		t.Errorf("it is listed still: %s", out)
	}
	if said := node.must(node.leaveArguments("--yes")...); !strings.Contains(said, "there is nothing to do") {
		t.Errorf("once more: %s", said)
	}
	joined(t, c, node)
}

// Promise: A machine leaves also while no controller answers, where nothing lives, and says what remains to do there.
func TestAMachineLeavesWithoutControllers(t *testing.T) {
	c, node, end := controlled(t)
	kill := joined(t, c, node)
	kill()
	end()
	said := node.must(node.leaveArguments("--yes")...)
	for _, wanted := range []string{"no controller is asked (", "agent s1 has left", "`ballast ctl pki revoke s1 --role agent`, then `ballast ctl node forget s1`", "remains to do: take this machine's servers out"} {
		if !strings.Contains(said, wanted) {
			t.Errorf("it does not say %q: %s", wanted, said)
		}
	}
	for _, dir := range []string{"tls", "default", "state"} {
		if left := contents(t, node.path(dir)); left != "" {
			t.Errorf("it has left %s", left)
		}
	}
}

// A node that runs by a file, and what is of somebody else, is left alone.
func TestWhatIsNoNodeOfControllersDoesNotLeave(t *testing.T) {
	node := newMachine(t, "s1")
	fleettest.Require(t, os.MkdirAll(node.path("default"), 0o755))
	fleettest.Require(t, os.WriteFile(node.path("default", "ballast-lb"), []byte("SOURCE=-f /etc/ballast/ballast.yaml\n"), 0o644))
	if _, err := node.run(node.leaveArguments("--yes", "--force")...); err == nil || !strings.Contains(err.Error(), "runs by a file") {
		t.Errorf("by a file: %v", err)
	}
	authority := fleettest.NewAuthority(t).Dir
	fleettest.Require(t, os.Remove(node.path("default", "ballast-lb")))
	fleettest.Require(t, pki.Directory(node.path("tls")))
	certified(t, authority, node.path("tls"), "s1", "agent")
	certified(t, authority, node.path("tls"), "s2", "agent")
	if _, err := node.run(node.leaveArguments("agent", "--yes", "--force")...); err == nil || !strings.Contains(err.Error(), "several of role agent (s1, s2)") {
		t.Errorf("of two: %v", err)
	}
	if left := contents(t, node.path("tls")); strings.Count(left, ".key\n") != 2 {
		t.Errorf("it has left %s", left)
	}
}

// Promise: A machine that is taken off is drained and has no data path left, keeps what makes it a member, and says how it comes back.
func TestAMachineIsTakenOffAndComesBack(t *testing.T) {
	c, node, _ := controlled(t)
	kill := joined(t, c, node)
	before := contents(t, node.path("tls")) + contents(t, node.path("default"))
	keep := node.leaveArguments("agent", "--keep", "--yes")
	if said := node.must(append(keep, "--dry-run")...); !strings.Contains(said, "agent s1 is taken off, and stays a member:\n") || strings.Contains(said, "revoked") || strings.Contains(said, "are removed") {
		t.Errorf("a dry run says %s", said)
	}
	kill()
	pins := instance.PinDir(node.path("run"), "default")
	if !pin.Any(pins) {
		t.Fatal("the agent has left no data path to remove")
	}
	for _, note := range []string{"", "# it was draining before this; if it is not to stay so: "} { // asked again, it cannot tell who drained the server
		said := node.must(keep...)
		if want := "agent s1 is off. To undo that:\n  # start its daemon (instance default)\n  " + note + "ballast ctl server undrain web s1\n"; !strings.HasSuffix(said, want) {
			t.Errorf("it says %s", said)
		}
	}
	if pin.Any(pins) {
		t.Error("it has left its data path")
	}
	if after := contents(t, node.path("tls")) + contents(t, node.path("default")); after != before {
		t.Errorf("it has changed\n%s to\n%s", before, after)
	}
	if out := c.must(c.ctl("server", "list", "-o", "json")...); strings.Count(out, "draining") != 1 {
		t.Errorf("its server does not drain: %s", out)
	}
	node.start("ballast-agent", "--state-dir", node.path("state"))
	await.Nil(t, "it is ready again", func() error {
		_, err := node.run("ctl", "--run-dir", node.path("run"), "status")
		return err
	})
	if out := c.must(c.ctl("server", "list", "-o", "json")...); strings.Count(out, "draining") != 1 {
		t.Errorf("by coming back it has undrained its server: %s", out)
	}
	c.must(c.ctl("server", "undrain", "web", "s1")...)
	if out := c.must(c.ctl("server", "list", "-o", "json")...); strings.Contains(out, "draining") {
		t.Errorf("its server drains still: %s", out)
	}
}
