package cli_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/lab/cli"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// The test binary behaves as ballast-lab where it is given a command, and as its processes.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(cli.Main("test", os.Args[1:], os.Stderr))
	}
	os.Exit(m.Run())
}

// lab is a command line of ballast-lab in a process of its own, which can be run without root and be interrupted.
func lab(line string) (command *exec.Cmd, stdout, stderr *bytes.Buffer) {
	command, stdout, stderr = exec.Command("/proc/self/exe", strings.Fields(line)...), &bytes.Buffer{}, &bytes.Buffer{}
	command.Stdout, command.Stderr = stdout, stderr
	return command, stdout, stderr
}

// ballastBeside puts a ballast beside the program: the same file by another name. Scenarios whose ballast is never run need no real one.
func ballastBeside(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(self), "ballast")
	if err := os.Link(self, beside); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(beside) })
}

func TestALabWithoutBallastSaysWhatIsMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	command, _, stderr := lab("run forwards")
	var exit *exec.ExitError
	if err := command.Run(); !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(stderr.String(), "find ballast") {
		t.Errorf("%v: %s", err, stderr)
	}
}

func TestALabThatCannotRunHasBrokenNoPromise(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, one := range []struct {
		line  string
		says  string
		asked bool // to run: it has a result
	}{
		{"run churn", "not root", true},
		{"run nosuch", "there is none of that name", false},
		{"run churn --duration -5s", "use 0s or more", false},
		{"run churn --rate 2", "use 0.01 to 1", false},
		{"run churn --seed x", "give a number", false},
		{"run churn --dispatch nosuch", "there is no such policy", true},
		{"compare --only f5", "use some of direct,haproxy", false},
		{"compare --events nosuch", "use some of server-added", false},
		{"compare --seed x", "give a number", false},
	} {
		command, stdout, stderr := lab(one.line + " --json")
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		err := command.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 {
			t.Errorf("%s: %v", one.line, err)
		}
		var result scenario.Result
		if one.asked {
			if err := json.Unmarshal(stdout.Bytes(), &result); err != nil || result.Outcome != scenario.NotRun || result.Kept || len(result.Failures) > 0 || !strings.Contains(result.Error, one.says) {
				t.Errorf("%s: %v: %s", one.line, err, stdout)
			}
		} else if stdout.Len() > 0 {
			t.Errorf("%s printed %s", one.line, stdout)
		}
		if output := stderr.String(); !strings.Contains(output, one.says) || strings.Contains(output, "broken") {
			t.Errorf("%s said %q", one.line, output)
		}
	}
}

func TestAComparisonSaysWhatItCompares(t *testing.T) {
	command, stdout, stderr := lab("compare --list -o json")
	err := command.Run()
	var all []struct{ Kind, Name, About string }
	if err := errors.Join(err, json.Unmarshal(stdout.Bytes(), &all)); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	kinds := map[string]int{}
	for _, one := range all {
		kinds[one.Kind]++
		if one.Name == "" || one.About == "" {
			t.Errorf("%+v", one)
		}
	}
	if kinds["contender"] < 10 || kinds["event"] < 10 || len(kinds) != 2 {
		t.Errorf("%v", kinds)
	}
}

func TestAnInterruptedLabHasBrokenNoPromiseAndLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if testing.Short() {
		t.Skip("it builds a network")
	}
	ballastBeside(t)
	command, stdout, _ := lab("run forwards --json --seed 18446744073709551615")
	command.Stderr = nil
	progress, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	for chunk := make([]byte, 4096); !strings.Contains(output.String(), "building"); {
		n, err := progress.Read(chunk)
		output.Write(chunk[:n])
		if err != nil {
			t.Fatalf("%v: %s", err, &output)
		}
	}
	if err := command.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = output.ReadFrom(progress)
	err = command.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 130 || strings.Contains(output.String(), "broken") {
		t.Errorf("%v: %s", err, &output)
	}
	var raw struct {
		Seed    string `json:"seed"`
		Outcome string `json:"outcome"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &raw); err != nil || raw.Seed != "18446744073709551615" || raw.Outcome != "not_run" {
		t.Errorf("%v: %s", err, stdout)
	}
	if left := netspace.Names(fmt.Sprintf("ballast-%d.", command.Process.Pid)); len(left) > 0 {
		t.Errorf("namespaces are left: %v", left)
	}
}
