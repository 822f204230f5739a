package packages

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

const configuration = "/etc/ballast/ballast.yaml"

// agentUnit has the agent in the namespace of s1. NetworkNamespacePath= of Debian 13's systemd would give it a mount namespace, too.
const agentUnit = `[Service]
ExecStart=
ExecStart=/usr/bin/nsenter --net=/run/netns/s1 /usr/bin/ballast agent --instance ${INSTANCE} $SOURCE $OPTIONS
WatchdogSec=15
`

// TestPackagesServeFromInstallationToPurge goes through what an operator does with a machine, in this order, while a client works. Nothing of
// the client's is lost until the packages are removed.
func TestPackagesServeFromInstallationToPurge(t *testing.T) {
	if *older == "" || *newer == "" {
		t.Skip("runs in virtual machines: make test-packages")
	}
	m := newMachine(t)
	m.serve()
	m.install(*older)
	m.configure()
	m.run("systemctl", "enable", "--now", "ballast-agent")
	m.run("systemctl", "enable", "--now", "ballast-lb")
	m.ready("ballast-agent", "")
	lb := m.ready("ballast-lb", "")
	m.announced(true)
	client := m.begin()
	m.unharmed(client, "installed")
	m.inHostsMounts("ballast-lb", "ballast-agent")
	if page := m.run("curl", "-sS", "--fail", "http://127.0.0.1:9440/"); !strings.Contains(page, "<title>") {
		m.t.Errorf("the console: %s", page)
	}

	m.reload()
	m.unharmed(client, "reloaded")
	m.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "ballast-lb")
	lb = m.ready("ballast-lb", lb)
	m.unharmed(client, "killed and started again by systemd")
	m.hang("ballast-agent")
	m.unharmed(client, "stuck, and ended by systemd's watchdog")
	m.upgrade(lb)
	m.unharmed(client, "upgraded")
	m.run("systemctl", "stop", "ballast-lb")
	m.unharmed(client, "stopped")
	m.announced(true)
	m.run("systemctl", "start", "ballast-lb")
	m.ready("ballast-lb", "")
	m.unharmed(client, "started")
	m.controller()
	m.run("ballast", "ctl", "node", "drain", "lb1", "--yes") // it is the only one
	m.announced(false)
	m.run("ballast", "ctl", "node", "undrain", "lb1")
	m.announced(true)
	client.stop()

	m.remove()
}

// install installs, as apt does with files, and starts nothing.
func (m *machine) install(directory string) {
	m.t.Helper()
	directory, err := filepath.Abs(directory) // apt takes others for names of packages
	m.must(err)
	packages, err := filepath.Glob(filepath.Join(directory, "*.deb"))
	m.must(err)
	if len(packages) == 0 {
		m.t.Fatalf("%s: there is no package", directory)
	}
	m.run("apt-get", append([]string{"install", "-y"}, packages...)...)
}

// configure has this machine's two daemons run by one file: the agent in the namespace of s1.
func (m *machine) configure() {
	for _, unit := range []string{"ballast-lb", "ballast-agent"} {
		if state := m.property(unit, "ActiveState"); state != "inactive" {
			m.t.Errorf("%s is %s though nobody has started it", unit, state)
		}
	}
	m.write(configuration, fleet)
	m.write("/etc/default/ballast-lb", "OPTIONS=--interface lb0 --name lb1 --console 127.0.0.1:9440\n")
	m.write("/etc/default/ballast-agent", "INSTANCE=s1\nOPTIONS=--interface eth0 --server s1\n")
	m.write("/etc/systemd/system/ballast-agent.service.d/test.conf", agentUnit)
	m.run("systemctl", "daemon-reload")
	for space, device := range map[string]string{"router": "lb,s1"} { // veth devices: see ballast pass --help
		m.run("nsenter", "--net=/run/netns/"+space, "ballast", "pass", "--interface", device)
	}
}

// inHostsMounts: a unit with a mount namespace of its own would lose the pins with its process.
func (m *machine) inHostsMounts(units ...string) {
	want, err := os.Readlink("/proc/1/ns/mnt")
	m.must(err)
	for _, unit := range units {
		if got, err := os.Readlink("/proc/" + m.property(unit, "MainPID") + "/ns/mnt"); err != nil || got != want {
			m.t.Errorf("%s has the mount namespace %s and systemd has %s: %v", unit, got, want, err)
		}
	}
}

// reload: `systemctl reload` tells whether the file was taken, and the reason is in the journal, as an error.
func (m *machine) reload() {
	m.t.Helper()
	m.write(configuration, strings.Replace(fleet, "id: 1", "id: 1, weight: 5", 1))
	m.run("systemctl", "reload", "ballast-lb")
	if servers := m.run("ballast", "ctl", "servers", "--json"); !strings.Contains(servers, `"weight": 5`) {
		m.t.Errorf("after the reload: %s", servers)
	}
	m.write(configuration, fleet+"nonsense: 1\n")
	if _, err := m.try("systemctl", "reload", "ballast-lb"); err == nil {
		m.t.Error("the reload of a file that is refused succeeded")
	}
	m.write(configuration, fleet)
	m.run("systemctl", "reload", "ballast-lb")
	m.run("systemctl", "reload", "ballast-agent")
	errors := m.run("journalctl", "--no-pager", "-u", "ballast-lb", "-p", "err", "-o", "cat")
	if !strings.Contains(errors, "nonsense: unknown key") || strings.Contains(errors, "level=INFO") {
		m.t.Errorf("errors in the journal: %s", errors)
	}
}

// hang stops a daemon's process without ending it. systemd hears nothing from it, ends it and starts another.
func (m *machine) hang(unit string) {
	m.t.Helper()
	before := m.property(unit, "MainPID")
	m.run("kill", "-STOP", before)
	m.ready(unit, before)
	if said := m.run("journalctl", "--no-pager", "-u", unit, "-o", "cat"); !strings.Contains(said, "Watchdog timeout") {
		m.t.Errorf("%s was started again for another reason: %s", unit, said)
	}
}

// controller: its unit leaves a controller all that it needs, and to begin with again after it was killed.
func (m *machine) controller() {
	m.t.Helper()
	m.run("ballast", "ctl", "pki", "init", "/root/fleet")
	m.run("ballast", "ctl", "pki", "issue", "/root/fleet", "controller", "c1", "--address", "10.60.0.10")
	m.run("install", "-D", "-m", "600", "-t", "/etc/ballast/tls", "/root/fleet/ca.crt", "/root/fleet/c1.crt", "/root/fleet/c1.key")
	m.write("/etc/default/ballast-controller", "OPTIONS=--data-dir /var/lib/ballast/controller\n")
	m.run("systemctl", "start", "ballast-controller")
	before := m.ready("ballast-controller", "")
	m.run("ballast", "ctl", "--instance", "c1", "apply", "--yes", "-f", configuration)
	m.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "ballast-controller")
	m.ready("ballast-controller", before)
	if running := m.run("ballast", "ctl", "--instance", "c1", "fleet"); !strings.Contains(running, "198.51.100.10") {
		m.t.Errorf("the controller has forgotten the fleet: %s", running)
	}
	m.run("systemctl", "stop", "ballast-controller")
}

// upgrade: the daemons that run are those of the new package.
func (m *machine) upgrade(lb string) {
	m.t.Helper()
	agent := m.property("ballast-agent", "MainPID")
	m.install(*newer)
	for unit, before := range map[string]string{"ballast-lb": lb, "ballast-agent": agent} {
		program, err := os.Readlink("/proc/" + m.ready(unit, before) + "/exe")
		if err != nil || program != "/usr/bin/ballast" { // one that was replaced would be "(deleted)"
			m.t.Errorf("%s runs %s: %v", unit, program, err)
		}
	}
}

// remove removes and purges. What the packages and the daemons made is gone.
func (m *machine) remove() {
	m.t.Helper()
	// The namespace of s1 is none that the package knows.
	m.run("systemctl", "disable", "--now", "ballast-agent")
	m.run("nsenter", "--net=/run/netns/s1", "ballast", "agent", "--detach", "--instance", "s1")
	m.run("rm", "-r", "/etc/systemd/system/ballast-agent.service.d")
	m.run("apt-get", "remove", "-y", "ballast")
	m.announced(false)
	for _, path := range []string{configuration, "/etc/default/ballast-lb", "/var/lib/ballast/default/state.json"} {
		if _, err := os.Stat(path); err != nil {
			m.t.Errorf("removed, not purged: %v", err)
		}
	}
	m.run("apt-get", "purge", "-y", "ballast")
	if left := m.run("find", "/", "-xdev", "-name", "*ballast*", "-not", "-path", "/proc/*", "-not", "-path", "/job/*"); left != "" {
		m.t.Errorf("files are left: %s", left)
	}
	if left := m.run("find", "/run", "-name", "*ballast*"); left != "" {
		m.t.Errorf("files are left: %s", left)
	}
	if mounts := m.run("cat", "/proc/self/mounts"); strings.Contains(mounts, "ballast") {
		m.t.Errorf("mounts are left: %s", mounts)
	}
	m.await("nothing is attached here", func() error { return bare("lb0") })
	m.await("nothing is attached on s1", func() error { return m.server.Do(func() error { return bare("eth0") }) })
}

// bare: a device has no program, and no filters. The kernel lets go of them a little later.
func bare(device string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	if xdp := link.Attrs().Xdp; xdp != nil && xdp.Attached {
		return fmt.Errorf("%s still has the XDP program %d", device, xdp.ProgId)
	}
	disciplines, err := netlink.QdiscList(link)
	for _, discipline := range disciplines {
		if discipline.Type() == "clsact" {
			return fmt.Errorf("%s still has clsact", device)
		}
	}
	return err
}
