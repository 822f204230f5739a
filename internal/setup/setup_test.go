package setup_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
	"github.com/ballast-lb/ballast/internal/daemon/agent"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/setup"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

func TestMain(m *testing.M) { clitest.Main(m) }

// machine is a network namespace with files of its own.
type machine struct {
	*testing.T
	name  string
	space *netspace.Space
	dir   string
}

func newMachine(t *testing.T, name string) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	space, err := netspace.Create(fmt.Sprintf("ballast-setup-%d-%s", os.Getpid(), name))
	fleettest.Require(t, err)
	t.Cleanup(func() {
		space.Close()
		fleettest.Require(t, netspace.Remove(space.Name))
	})
	return &machine{t, name, space, t.TempDir()}
}

func connect(t *testing.T, a, b *machine, addressOfA, addressOfB string) {
	t.Helper()
	end := func(m *machine, address string) netspace.End {
		return netspace.End{Space: m.space, Interface: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}
	}
	fleettest.Require(t, netspace.Connect(end(a, addressOfA), end(b, addressOfB)))
}

func (m *machine) path(parts ...string) string {
	return filepath.Join(append([]string{m.dir}, parts...)...)
}

// files are the flags that keep a command to the machine's own files.
func (m *machine) files() []string {
	fleettest.Require(m, os.MkdirAll(m.path("default"), 0o755))
	return []string{"--tls-dir", m.path("tls"), "--defaults-dir", m.path("default"), "--run-dir", m.path("run"), "--no-start"}
}

func (m *machine) command(arguments ...string) *exec.Cmd {
	return exec.Command("/proc/self/exe", arguments...)
}

// run runs a command to its end.
func (m *machine) run(arguments ...string) (out string, err error) {
	m.Helper()
	var output, stderr bytes.Buffer
	command := m.command(arguments...)
	command.Stdout, command.Stderr = &output, &stderr
	fleettest.Require(m, m.space.Start(command))
	defer time.AfterFunc(fleettest.Deadline, func() { command.Process.Kill() }).Stop()
	if err = command.Wait(); err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return output.String(), err
}

func (m *machine) must(arguments ...string) string {
	m.Helper()
	out, err := m.run(arguments...)
	if err != nil {
		m.Fatalf("%s: ballast %s: %v", m.name, strings.Join(arguments, " "), err)
	}
	return out
}

// start starts a daemon by the options of its unit, which are as systemd reads them.
func (m *machine) start(unit string, arguments ...string) (kill func()) {
	m.Helper()
	text, err := os.ReadFile(m.path("default", unit))
	fleettest.Require(m, err)
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			m.Fatalf("options of %s: %s", unit, text)
		}
		if key == "INSTANCE" {
			arguments = append(arguments, "--instance")
		}
		arguments = append(arguments, strings.Fields(strings.Trim(value, `"`))...)
	}
	said := &sayings{}
	daemon := m.command(append([]string{strings.TrimPrefix(unit, "ballast-"), "--run-dir", m.path("run"), "--tls-dir", m.path("tls")}, arguments...)...)
	daemon.Stderr = said
	fleettest.Require(m, m.space.Start(daemon))
	kill = func() {
		daemon.Process.Kill()
		daemon.Wait()
	}
	m.Cleanup(func() {
		kill()
		if m.Failed() {
			m.Logf("%s said:\n%s", unit, said)
		}
	})
	return kill
}

// sayings is what a daemon says, which may be read while it speaks.
type sayings struct {
	mutex sync.Mutex
	said  bytes.Buffer
}

func (s *sayings) Write(text []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.said.Write(text)
}

func (s *sayings) String() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.said.String()
}

// initialize makes the machine the first controller.
func (m *machine) initialize() (said string) {
	m.Helper()
	return m.must(append(m.initArguments(), m.files()...)...)
}

func (m *machine) initArguments() []string {
	return []string{"controller", "init", "--name", "c1", "--address", "10.9.0.1", "--authority-dir", m.path("authority"), "--data-dir", m.path("data")}
}

func (m *machine) ctl(arguments ...string) []string {
	return append([]string{"ctl", "--instance", "c1", "--run-dir", m.path("run")}, arguments...)
}

// invitation is what `node invite` prints for programs.
type invitation struct {
	ID, Token, Command string
	Left               int
	Joined             []string
}

func (m *machine) invite(arguments ...string) (i invitation) {
	m.Helper()
	fleettest.Require(m, json.Unmarshal([]byte(m.must(m.ctl(append([]string{"node", "invite", "-o", "json"}, arguments...)...)...)), &i))
	return i
}

// Promise: Two commands on a controller and the line that the second prints on another machine make that a node which is connected.
func TestAMachineBecomesANodeByThreeCommands(t *testing.T) {
	c, lb := newMachine(t, "c1"), newMachine(t, "lb1")
	connect(t, c, lb, "10.9.0.1/24", "10.9.0.2/24")
	if said := c.initialize(); !strings.Contains(said, "ballast ctl --instance c1 node invite lb") || !strings.Contains(said, "ballast ctl --instance c1 pki delegate "+c.path("authority")) {
		t.Errorf("init says %s", said)
	}
	c.start("ballast-controller")
	await.Nil(t, "the controller has the signing authority", func() error {
		_, err := c.run(c.ctl("pki", "delegate", c.path("authority"), "--yes")...)
		return err
	})
	invited := c.invite("lb")
	if invited.Command != "ballast join 10.9.0.1 --token "+invited.Token {
		t.Fatalf("the line is %s", invited.Command)
	}
	arguments := append(strings.Fields(invited.Command)[1:], append(lb.files(), "--name", "lb1", "--interface", "eth0")...)
	if said := lb.must(arguments...); !strings.Contains(said, "lb lb1: controller c1 has signed the certificate") || !strings.Contains(said, "ballast lb --instance default --controller 10.9.0.1:6443 --name lb1 --interface eth0") {
		t.Errorf("join says %s", said)
	}
	certificate, err := pki.ReadCertificate(lb.path("tls", "lb1.crt"))
	fleettest.Require(t, err)
	if have := fmt.Sprint(certificate.IPAddresses); have != "[10.9.0.2]" {
		t.Errorf("it has the addresses %s", have)
	}
	if info, err := os.Stat(lb.path("tls", "lb1.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its key: %v, %v", info, err)
	}
	fleettest.Require(t, pin.EnsureBPFFS(lb.path("run", "bpf")))
	t.Cleanup(func() { // after the daemon
		lb.space.Do(func() error {
			return instance.Detach(lb.path("run"), "default", pki.LB, func(string) error { return nil })
		})
	})
	lb.start("ballast-lb", "--state-dir", lb.path("state"))
	await.Nil(t, "the load balancer is connected", func() error {
		out, err := c.run(c.ctl("node", "list", "-o", "json")...)
		if err == nil && !strings.Contains(out, `"address": "10.9.0.2`) {
			err = fmt.Errorf("nodes: %s", out)
		}
		return err
	})
	if _, err := lb.run(arguments...); err == nil || !strings.Contains(err.Error(), "--again") {
		t.Errorf("to join once more: %v", err)
	}
	if named := c.invite("agent", "--name", "s1"); named.Command != "ballast join 10.9.0.1 --token "+named.Token+" --name s1" {
		t.Errorf("the line is %s", named.Command)
	}
	if out := c.must(c.ctl("invite", "list")...); !strings.Contains(out, "0 of 1") || !strings.Contains(out, "lb1") {
		t.Errorf("invitations: %s", out)
	}
	if out := c.must(c.ctl("history", "list")...); !strings.Contains(out, "lb lb1: joined from 10.9.0.2 by invitation "+invited.ID) {
		t.Errorf("the history: %s", out)
	}
}

// A command that changes nothing says why, and leaves every file as it was.
func TestNothingIsOverwritten(t *testing.T) {
	c, node := newMachine(t, "c1"), newMachine(t, "s1")
	connect(t, c, node, "10.9.0.1/24", "10.9.0.2/24")
	c.initialize()
	before := contents(t, c.dir)
	if _, err := c.run(append(c.initArguments(), c.files()...)...); err == nil || !strings.Contains(err.Error(), "is there already: nothing was changed") {
		t.Errorf("init once more: %v", err)
	}
	if after := contents(t, c.dir); after != before {
		t.Errorf("it has changed\n%s to\n%s", before, after)
	}
	c.start("ballast-controller")
	await.Nil(t, "the controller has the signing authority", func() error {
		_, err := c.run(c.ctl("pki", "delegate", c.path("authority"), "--yes")...)
		return err
	})
	invited := c.invite("agent", "--uses", "3")
	join := func(more ...string) (string, error) {
		return node.run(append(append(strings.Fields(invited.Command)[1:], node.files()...), more...)...)
	}
	fleettest.Require(t, os.MkdirAll(node.path("default"), 0o755))
	if _, err := join("--name", "s1", "--interface", "eth7"); err == nil || !strings.Contains(err.Error(), "find interface eth7") || !strings.Contains(err.Error(), "this host has eth0") {
		t.Errorf("with a device that is not there: %v", err)
	}
	fleettest.Require(t, os.WriteFile(node.path("default", "ballast-agent"), []byte("mine\n"), 0o644))
	if _, err := join("--name", "s1"); err == nil || !strings.Contains(err.Error(), "ballast-agent is there already") || !strings.Contains(err.Error(), "`ballast leave`") {
		t.Errorf("with options of somebody: %v", err)
	}
	if _, err := join("--name", "s1", "--token", "bt1.x"); err == nil || !strings.Contains(err.Error(), "it is no token") {
		t.Errorf("with half a token: %v", err)
	}
	if _, err := join("--name", "s1", "--certificate-only"); err != nil {
		t.Errorf("the certificate alone: %v", err)
	}
	first, err := os.ReadFile(node.path("tls", "s1.crt"))
	fleettest.Require(t, err)
	if _, err := join("--name", "s1", "--certificate-only", "--again"); err == nil || !strings.Contains(err.Error(), "s1 is the name of agent s1") {
		t.Errorf("again, while the certificate lives: %v", err)
	}
	c.must(c.ctl("pki", "revoke", "s1", "--yes")...)
	if _, err := join("--name", "s1", "--certificate-only", "--again"); err != nil {
		t.Errorf("again, once it is revoked: %v", err)
	}
	second, err := os.ReadFile(node.path("tls", "s1.crt"))
	fleettest.Require(t, err)
	if bytes.Equal(first, second) {
		t.Error("the certificate is the same")
	}
	if _, err := pki.Load(node.path("tls"), "s1", pki.Agent); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(node.path("default", "ballast-agent")); err != nil || string(text) != "mine\n" {
		t.Errorf("options are %q now", text)
	}
	fleettest.Require(t, os.Remove(node.path("default", "ballast-agent")))
	if _, err := join("--name", "s2", "--again", "--instance", "second"); err == nil || !strings.Contains(err.Error(), "is the address of agent s1") {
		t.Errorf("another node of the machine: %v", err)
	}
	c.must(c.ctl("pki", "revoke", "s1", "--yes")...)
	if said, err := join("--name", "s1", "--again", "--instance", "second", "--options", "--metrics 127.0.0.1:9436"); err != nil || !strings.Contains(said, "ballast agent --instance second") {
		t.Errorf("again, without options: %v, %s", err, said)
	}
	if text, err := os.ReadFile(node.path("default", "ballast-agent")); err != nil ||
		string(text) != "INSTANCE=second\nSOURCE=\"--controller 10.9.0.1:6443 --name s1\"\nOPTIONS=\"--metrics 127.0.0.1:9436\"\n" {
		t.Errorf("options are %q, %v", text, err)
	}
	c.must(c.ctl("invite", "revoke", invited.ID)...)
	fleettest.Require(t, os.Remove(node.path("default", "ballast-agent")))
	if said, err := join("--name", "s2"); err == nil || !strings.Contains(err.Error(), "refuses") || !strings.Contains(said, "asking 10.9.0.1:6443") {
		t.Errorf("a token that is revoked: %v, %s", err, said)
	}
	if left := contents(t, node.path("tls")); strings.Contains(left, "s2.key") {
		t.Errorf("a refused join leaves a key: %s", left)
	}
}

// contents are the files below a directory.
func contents(t *testing.T, dir string) (all string) {
	t.Helper()
	fleettest.Require(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all += path + "\n" + string(text)
		return err
	}))
	return all
}

// Promise: Where systemd runs, a controller and a node are set up, started and connected when the command ends.
func TestWhereSystemdRunsUnitsAreStartedAndReady(t *testing.T) {
	c, node := newMachine(t, "c1"), newMachine(t, "s1")
	connect(t, c, node, "10.9.0.1/24", "10.9.0.2/24")
	var said strings.Builder
	host := func(m *machine, started *string, more ...string) setup.Host {
		m.files()
		return setup.Host{TLSDir: m.path("tls"), Defaults: m.path("default"), RunDir: m.path("run"), Out: &said, Wait: fleettest.Deadline,
			Systemd: func(_ context.Context, unit string) error {
				*started = unit
				m.start(unit, more...)
				return nil
			}}
	}
	var started string
	first := setup.Controller{Host: host(c, &started), Authority: c.path("authority"), DataDir: c.path("data"), Name: "c1", Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.1")}}
	fleettest.Require(t, first.Run(t.Context()))
	if started != "ballast-controller" || !strings.Contains(said.String(), "controller c1 is ready") {
		t.Fatalf("%s was started: %s", started, said.String())
	}
	if _, err := os.Stat(c.path("authority", "c1.key")); !os.IsNotExist(err) {
		t.Errorf("the controller's key is beside the authority's: %v", err)
	}
	invited := c.invite("agent")
	fleettest.Require(t, pin.EnsureBPFFS(node.path("run", "bpf")))
	t.Cleanup(func() { // after the daemon
		node.space.Do(func() error {
			return agent.Detach(agent.Options{RunDir: node.path("run"), Instance: "default", Log: fleettest.Log(t)}, func(string) error { return nil })
		})
	})
	join := setup.Join{Host: host(node, &started, "--state-dir", node.path("state")), Controllers: []string{"10.9.0.1:6443"}, Token: invited.Token, Name: "s1", Interfaces: []string{"eth0"},
		Instance: "default", Version: "1.2.3"}
	fleettest.Require(t, node.space.Do(func() error { return join.Run(t.Context()) }))
	if started != "ballast-agent" || !strings.Contains(said.String(), "agent s1 is connected") {
		t.Errorf("%s was started: %s", started, said.String())
	}
	if out := c.must(c.ctl("pki", "revoke", "s1", "--yes")...); !strings.Contains(out, "revoked: all certificates of s1") {
		t.Errorf("%s", out)
	}
}
