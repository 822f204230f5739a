package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// isolate hides the machine's namespaces, pins and state from the commands of the document, and theirs from the machine.
const isolate = `set -e
mount -t tmpfs none /run
mount --make-shared /run
mkdir -p /var/lib/ballast
mount -t tmpfs none /var/lib/ballast
set -x
`

const untilHealthy = `until ballast ctl --instance lb server list | grep -q ' healthy'; do read -t 0.1 <> <(:) || true; done 2>/dev/null
`

// Promise: The commands of docs/start/quickstart.md print what it shows.
func TestQuickstartDoesWhatItShows(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces and BPF")
	}
	if testing.Short() {
		t.Skip("real daemons take too long for -short")
	}
	t.Parallel()
	text, err := os.ReadFile("../../docs/start/quickstart.md")
	if err != nil {
		t.Fatal(err)
	}
	script := isolate
	for _, block := range regexp.MustCompile("(?ms)^```\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		if strings.Contains(block[1], "make ") { // built already
			continue
		}
		shown := regexp.MustCompile(`(?m)^\$ (.*\n)`).FindAllStringSubmatch(block[1], -1)
		for _, command := range shown {
			script += command[1]
		}
		if len(shown) == 0 {
			script += block[1]
		}
		if strings.Contains(block[1], "ballast lb -f") {
			script += untilHealthy
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-m", "-c", script)
	shell.Dir = t.TempDir()
	shell.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	output, err := shell.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	if answers := strings.Count(string(output), "\n200\n"); answers != 2 {
		t.Errorf("%d of 2 requests were answered", answers)
	}
	if !strings.Contains(string(output), "\nforwarded_by_cookie  ") {
		t.Error("no packet was forwarded by its cookie")
	}
	if t.Failed() {
		t.Logf("%s", output)
	}
}
