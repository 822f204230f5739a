package ctl_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/cli/clitest"
)

// home gives a test a home of its own, and returns where contexts are.
func home(t *testing.T) (file string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	for _, name := range []string{"CONTEXT", "CONTROLLER", "INSTANCE", "SOCKET", "RUN_DIR", "TLS_DIR", "TLS_NAME", "OUTPUT"} {
		t.Setenv("BALLAST_"+name, "")
		os.Unsetenv("BALLAST_" + name)
	}
	return filepath.Join(dir, "ballast", "contexts.yaml")
}

func sayCtl(t *testing.T, line string) string {
	t.Helper()
	out, err := clitest.Run(append([]string{"ctl"}, strings.Fields(line)...)...)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return out
}

func refuseCtl(t *testing.T, line string, parts ...string) {
	t.Helper()
	_, err := clitest.Run(append([]string{"ctl"}, strings.Fields(line)...)...)
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, without %q", line, err, part)
		}
	}
}

func TestAFlagGoesBeforeTheEnvironmentAndThatBeforeAContext(t *testing.T) {
	home(t)
	refuseCtl(t, "status", "/run/ballast/default")
	sayCtl(t, "context set here --instance ofcontext --run-dir /nowhere/context")
	sayCtl(t, "context set prod --controller c1:1,c2 --tls-dir /nowhere/tls")
	refuseCtl(t, "status", "/run/ballast/default") // it is not used yet
	sayCtl(t, "context use here")
	refuseCtl(t, "status", "/nowhere/context/ofcontext", "(instance ofcontext by context here; run-dir /nowhere/context by context here)")
	refuseCtl(t, "--context prod node list", "/nowhere/tls", "controller c1:1,c2 by context prod")
	refuseCtl(t, "--context= status", "/run/ballast/default")
	refuseCtl(t, "--context none status", `there is no context "none", which --context names`)
	t.Setenv("BALLAST_CONTEXT", "prod")
	refuseCtl(t, "status", "run the command on that node", "by context prod")
	refuseCtl(t, "--context here status", "/nowhere/context/ofcontext")
	if out := sayCtl(t, "context show"); !strings.Contains(out, "prod") || !strings.Contains(out, "BALLAST_CONTEXT") {
		t.Errorf("shown: %s", out)
	}
	t.Setenv("BALLAST_INSTANCE", "ofvariable")
	refuseCtl(t, "status", "/run/ballast/ofvariable", "(instance ofvariable by BALLAST_INSTANCE)")
	refuseCtl(t, "--instance offlag status", "/run/ballast/offlag")
	refuseCtl(t, "--context here status", "/nowhere/context/ofcontext", "(instance ofcontext by context here; run-dir /nowhere/context by context here)")
	refuseCtl(t, "--context= status", "/run/ballast/ofvariable")
	t.Setenv("BALLAST_TLS_DIR", "/nowhere/variable")
	refuseCtl(t, "--context prod node list", "/nowhere/tls", "(controller c1:1,c2 by context prod; tls-dir /nowhere/tls by context prod)")
	refuseCtl(t, "--controller c3 node list", "/nowhere/variable")
	refuseCtl(t, "--controller c3 --context prod node list", "/nowhere/tls")
	refuseCtl(t, "--controller c3 --tls-dir /nowhere/flag --context prod node list", "/nowhere/flag")
	t.Setenv("BALLAST_TLS_DIR", "")
	refuseCtl(t, "--controller c3 node list", "/etc/ballast/tls")
	t.Setenv("BALLAST_INSTANCE", "")
	t.Setenv("BALLAST_CONTROLLER", "c9:nonsense")
	refuseCtl(t, "node list", "use HOST:PORT", "controller c9:nonsense by BALLAST_CONTROLLER")
	if _, err := clitest.Run("ctl", "--instance", "offlag", "status"); err == nil || strings.Contains(err.Error(), "BALLAST") {
		t.Errorf("a flag says it all, and yet: %v", err)
	}
}

func TestContextsAreKept(t *testing.T) {
	file := home(t)
	if out := sayCtl(t, "context list -o json"); out != "[]\n" {
		t.Errorf("none: %q", out)
	}
	refuseCtl(t, "context use prod", "there is no context")
	refuseCtl(t, "context set prod", "nothing is given")
	refuseCtl(t, "context set ../x --instance a", "letters, digits")
	refuseCtl(t, "context set prod --controller c1:nonsense", "use HOST:PORT")
	sayCtl(t, "context set prod --controller c1 --tls-dir tls")
	refuseCtl(t, "context set prod --instance lb1", "take one away")
	sayCtl(t, "context set prod --tls-name alice")
	sayCtl(t, "context use prod")
	here, _ := filepath.Abs("tls")
	if out := sayCtl(t, "context show prod -o yaml"); out != "name: prod\nused: true\nchosen_by: '`ballast ctl context use`'\ncontrollers: [c1]\ntls_dir: "+here+"\ntls_name: alice\n" {
		t.Errorf("%s", out)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	sayCtl(t, "context delete prod")
	refuseCtl(t, "context show", "no context is used")
	refuseCtl(t, "context delete prod", "there is no context")
}

func TestAFileThatSomebodyElseMayHaveWrittenIsRefused(t *testing.T) {
	file := home(t)
	sayCtl(t, "context set here --instance x")
	const line = "context list"
	if err := os.Chmod(file, 0o622); err != nil {
		t.Fatal(err)
	}
	refuseCtl(t, line, "others may write it: chmod 600")
	refuseCtl(t, "status", "others may write it")
	refuseCtl(t, "--instance y status", "/run/ballast/y") // it is not read
	write := func(text string) {
		os.Remove(file)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("contexts: {here: {instanc: x}}\n")
	refuseCtl(t, line, "instanc")
	write("nonsense: 1\n")
	refuseCtl(t, line, "nonsense")
	write("")
	if out := sayCtl(t, line+" -o json"); out != "[]\n" {
		t.Errorf("an empty file: %q", out)
	}
	os.Remove(file)
	if err := unix.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	refuseCtl(t, line, "it is no file")
	os.Remove(file)
	elsewhere := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.Symlink(elsewhere, file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sayCtl(t, "context set here --instance x")
	if info, err := os.Lstat(file); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", info, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("another owner: needs root")
	}
	if err := os.Chown(elsewhere, 1234, -1); err != nil {
		t.Fatal(err)
	}
	refuseCtl(t, line, "it belongs to user 1234")
	if err := os.Chown(filepath.Dir(elsewhere), 1234, -1); err != nil {
		t.Fatal(err)
	}
	refuseCtl(t, "context set here --instance y", "belongs to user 1234")
}

func TestTwoWritersAtOnceLoseNothing(t *testing.T) {
	file := home(t)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".new", []byte("of a writer that was killed"), 0o600); err != nil {
		t.Fatal(err)
	}
	const writers = 12
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			if _, err := clitest.Run("ctl", "context", "set", fmt.Sprint("fleet", i), "--instance", "x"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if out := sayCtl(t, "context list"); strings.Count(out, "fleet") != writers {
		t.Errorf("of %d contexts there are %s", writers, out)
	}
}
