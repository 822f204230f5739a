package machines

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// newer is a package with the same contents and the next version.
func newer(t *testing.T, old string) string {
	t.Helper()
	dir := t.TempDir()
	root, made := filepath.Join(dir, "root"), filepath.Join(dir, "newer.deb")
	if output, err := exec.Command("dpkg-deb", "-R", old, root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	control := filepath.Join(root, "DEBIAN/control")
	text, err := os.ReadFile(control)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`(?m)^Version: .*$`).ReplaceAll(text, []byte("Version: 99.0"))
	if err := os.WriteFile(control, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", root, made).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return made
}

// killed reloads a daemon, kills it, and waits until systemd has started it again.
const killed = `
unit=%s
systemctl reload $unit
before=$(systemctl show -p MainPID --value $unit)
kill -9 $before
for i in $(seq 100); do
  after=$(systemctl show -p MainPID --value $unit)
  ! [ $after != 0 -a $after != $before ] || ! systemctl -q is-active $unit || exit 0
  sleep 0.1
done
echo "$unit does not come back"
exit 1
`

// inVain has systemd start a daemon with a wrong option, and waits until doctor says why it does not stay up.
const inVain = `
echo 'OPTIONS="--interface nosuch"' >> /etc/default/ballast-lb
systemctl restart --no-block ballast-lb
for i in $(seq 100); do
  ballast doctor > said || true
  ! grep -q 'ballast-lb .*is not up, and was started again .*find interface nosuch.*this host has eth0' said || break
  sleep 0.2
done
cat said
sed -i '$d' /etc/default/ballast-lb
systemctl restart ballast-lb
grep -q 'find interface nosuch' said
for i in $(seq 100); do # BGP takes a moment
  ballast doctor > said && exit 0
  sleep 0.2
done
cat said
exit 1
`

// left prints what is there of a purged package.
const left = `
grep ballast/bpf /proc/mounts || true
ip link show eth0 | grep -o xdp || true
find / -xdev '(' -path /proc -o -path /root -o -path /var/log -o -path /var/tmp ')' -prune -o -iname '*ballast*' -print | grep -v /etc/ballast-machines || true
`

// Promise: An upgrade of the package, on every machine of the fleet, loses no request and no connection; what is
// purged leaves nothing.
func TestPackagesAreUpgradedWithoutLossAndPurged(t *testing.T) {
	old := packaged(t)
	r := underRequests(t, old, newer(t, old))
	upgraded := map[string]string{"c1": "controller", "lb1": "lb", "lb2": "lb", "s1": "agent", "s2": "agent"}
	for _, machine := range []string{"c1", "lb1", "lb2", "s1", "s2"} {
		before := r.on(machine, "systemctl show -p MainPID ballast-"+upgraded[machine])
		r.on(machine, "apt-get install -qq ./newer.deb && systemctl is-active ballast-"+upgraded[machine])
		if after := r.on(machine, "systemctl show -p MainPID ballast-"+upgraded[machine]); after == before {
			t.Errorf("%s: the old daemon runs on", machine)
		}
	}
	for _, machine := range []string{"lb1", "lb2", "s1", "s2"} {
		r.on(machine, fmt.Sprintf(killed, "ballast-"+upgraded[machine]))
	}
	r.on("lb2", inVain)
	r.lostNothing()
	for _, machine := range []string{"lb2", "s2", "c1"} {
		if said := r.on(machine, "apt-get purge -qq ballast"); strings.Contains(said, "ballast: ") {
			t.Errorf("%s: %s", machine, said)
		}
		if left := r.on(machine, left); left != "" {
			t.Errorf("%s: left: %s", machine, left)
		}
	}
}
