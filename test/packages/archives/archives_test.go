// Package archives looks at what `make packages` made, and installs it in folders of Debian without systemd.
package archives

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const root = "../../.."

func TestPackagesNameFilesThatExist(t *testing.T) {
	var sources []string
	for _, name := range []string{"nfpm", "nfpm-lab"} {
		text, err := os.ReadFile(root + "/deploy/packages/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var config struct {
			Contents []struct{ Src string }
			Scripts  map[string]string
		}
		if err := yaml.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		for _, content := range config.Contents {
			sources = append(sources, content.Src)
		}
		for _, script := range config.Scripts {
			sources = append(sources, script)
		}
	}
	if len(sources) < 20 {
		t.Fatalf("%d sources only", len(sources))
	}
	for _, source := range sources {
		if source == "" || strings.HasPrefix(source, "bin/packages/stage/") {
			continue
		}
		if found, err := filepath.Glob(filepath.Join(root, source)); err != nil || len(found) == 0 {
			t.Errorf("%s: no such file (%v)", source, err)
		}
	}
}

func TestScriptsOfPackagesAreShell(t *testing.T) {
	scripts, err := filepath.Glob(root + "/deploy/packages/scripts/*")
	if err != nil || len(scripts) != 6 {
		t.Fatalf("scripts %v: %v", scripts, err)
	}
	for _, script := range scripts {
		if out, err := exec.Command("dash", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
}

func long(t *testing.T) {
	if os.Getenv("BALLAST_LONG") == "" {
		t.Skip("BALLAST_LONG=1 runs it: it needs `make packages`, mmdebstrap and minutes")
	}
}

// archive is the one that matches a pattern in bin/packages.
func archive(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "bin/packages", pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in bin/packages: %v (%v): make packages", pattern, found, err)
	}
	path, err := filepath.Abs(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Installed, verified, upgraded from an older version, removed and purged; each step has its checks, and set -e ends at the first that fails.
const life = `set -eu
dpkg-deb -R /ballast.deb /older
sed -i 's/^Version: .*/Version: 0.0.0~1-1/' /older/DEBIAN/control
dpkg-deb --root-owner-group -b -Znone /older /older.deb >/dev/null
rm -r /older
dpkg -i /older.deb
echo mine > /etc/ballast/ballast.yaml
mkdir -p /var/lib/ballast/default
dpkg -i /ballast.deb
dpkg -i --force-depends /ballast-lab.deb
ballast-lab list > /dev/null
dpkg -P ballast-lab
test "$(dpkg-query -W -f '${Status}' ballast)" = "install ok installed"
test "$(cat /etc/ballast/ballast.yaml)" = mine
test "$(stat -c '%a %U' /etc/ballast /etc/ballast/tls | tr '\n' ,)" = "750 root,700 root,"
dpkg -V ballast
ballast version
bash -c '. /usr/share/bash-completion/completions/ballast && complete -p ballast'
for unit in lb agent controller; do
  file=/lib/systemd/system/ballast-$unit.service
  sed -n 's|^Documentation=file://||p; s|^ExecStart=\([^ ]*\).*|\1|p' $file | while read -r path; do test -e "$path" || { echo "$file: no $path"; exit 1; }; done
done
test ! -e /etc/systemd/system/multi-user.target.wants/ballast-lb.service
LD_PRELOAD=/usr/lib/ballast/ballast-quic.so:/usr/lib/ballast/ballast-ticket.so true
dpkg -r ballast
test "$(cat /etc/ballast/ballast.yaml)" = mine
test ! -e /usr/bin/ballast
echo SOURCE= > /etc/default/ballast-lb
dpkg -P ballast
left=$(find / -xdev -path /proc -prune -o -iname '*ballast*' -print | grep -v -e '^/ballast.deb$' -e '^/ballast-lab.deb$' -e '^/older.deb$' || true)
test -z "$left" || { echo "left: $left"; exit 1; }
`

func TestPackagesInstallUpgradeAndLeaveNothing(t *testing.T) {
	long(t)
	deb := archive(t, "ballast_*_amd64.deb")
	lab := archive(t, "ballast-lab_*_amd64.deb")
	for _, release := range []string{"bookworm", "trixie"} {
		t.Run(release, func(t *testing.T) {
			folder, err := os.MkdirTemp("", "ballast-packages-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(folder) })
			script := filepath.Join(folder, "life")
			if err := os.WriteFile(script, []byte(life), 0o755); err != nil {
				t.Fatal(err)
			}
			// mmdebstrap mounts and unmounts /proc and /dev of its folder by itself, around each chroot of a hook.
			out, err := exec.Command("mmdebstrap", "--mode=root", "--variant=minbase", "--format=null", "--quiet",
				"--customize-hook=copy-in "+script+" /", "--customize-hook=upload "+deb+" /ballast.deb", "--customize-hook=upload "+lab+" /ballast-lab.deb",
				`--customize-hook=chroot "$1" sh /life`, release, "/dev/null").CombinedOutput()
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}

func TestLintianFindsNothing(t *testing.T) {
	long(t)
	for _, architecture := range []string{"amd64", "arm64"} {
		for _, name := range []string{"ballast", "ballast-lab", "ballast-kube"} {
			out, err := exec.Command("lintian", "--allow-root", "--fail-on", "error,warning", archive(t, name+"_*_"+architecture+".deb")).CombinedOutput()
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
		}
	}
}

func TestRPMsAreWhole(t *testing.T) {
	long(t)
	for _, architecture := range []string{"x86_64", "aarch64"} {
		rpm := archive(t, "ballast-[0-9]*."+architecture+".rpm")
		if out, err := exec.Command("rpm", "-K", "--nosignature", rpm).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		out, err := exec.Command("rpm", "-qpl", rpm).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, path := range []string{"/usr/bin/ballast", "/usr/lib/systemd/system/ballast-lb.service", "/usr/share/man/man1/ballast-ctl.1.gz", "/usr/share/man/man5/ballast.yaml.5.gz", "/usr/share/licenses/ballast/LICENSE"} {
			if !strings.Contains(string(out), path+"\n") {
				t.Errorf("%s: no %s", rpm, path)
			}
		}
	}
}
