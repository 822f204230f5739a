package ctl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/model"
)

// pseudoTerminal returns the two ends of a terminal.
func pseudoTerminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals here:", err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return person, program
}

// atTerminal runs a command for a person who types something, and returns all that the terminal showed.
func atTerminal(t *testing.T, typed string, arguments ...string) (shown string, err error) {
	t.Helper()
	person, program := pseudoTerminal(t)
	if _, err := io.WriteString(person, typed); err != nil {
		t.Fatal(err)
	}
	root := cli.Root("test")
	root.SetIn(program)
	root.SetOut(program)
	root.SetErr(program)
	root.SetArgs(arguments)
	read := make(chan string)
	go func() {
		all, _ := io.ReadAll(person) // ends with an error once nobody has the other end open
		read <- string(all)
	}()
	err = root.Execute()
	program.Close()
	return <-read, err
}

func TestApplyAsksAPersonAndHeedsTheAnswer(t *testing.T) {
	memory := &apitest.Memory{}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	apply := []string{"ctl", "--socket", path, "apply", "-f", write(t, fleetFile)}
	for _, answer := range []string{"n\n", "\n", "perhaps\n"} {
		shown, err := atTerminal(t, answer, apply...)
		if err == nil || err.Error() != "nothing was changed" || !strings.Contains(shown, "+ service web: added with 2 servers\r\napply? [y/N] ") {
			t.Errorf("answered %q: %v, %q", answer, err, shown)
		}
	}
	if fleet, _, _ := memory.Fleet(t.Context()); len(fleet.Services) != 0 {
		t.Error("it was applied all the same")
	}
	if shown, err := atTerminal(t, "y\n", apply...); err != nil || !strings.Contains(shown, "applied, revision 1") {
		t.Errorf("answered y: %v, %q", err, shown)
	}
}

func TestWhatIsApprovedLateIsNotDoneToAnotherFleet(t *testing.T) {
	memory := &apitest.Memory{}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, fleetFile))
	person, program := pseudoTerminal(t)
	root := cli.Root("test")
	root.SetIn(program)
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	root.SetArgs([]string{"ctl", "--socket", path, "apply", "-f", write(t, strings.Replace(fleetFile, "s2", "s3", 1))})
	done := make(chan error)
	asked := make(chan struct{})
	root.SetOut(writerFunc(func(text string) {
		if strings.Contains(text, "apply?") {
			close(asked)
		}
	}))
	go func() { done <- root.Execute() }()
	<-asked
	ctl.must("service", "set", "web", "--dispatch", "p2c")
	if _, err := io.WriteString(person, "y\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "has changed in the meantime") {
		t.Errorf("approved a diff that was no more: %v", err)
	}
	ctl.expect("fleet", "dispatch: p2c", "name: s2")
}

func TestWhoIsAskedCanInterrupt(t *testing.T) {
	memory := &apitest.Memory{}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	_, program := pseudoTerminal(t)
	ctx, interrupt := context.WithCancel(t.Context())
	root := cli.Root("test")
	root.SetIn(program)
	root.SetErr(io.Discard)
	root.SetOut(writerFunc(func(text string) {
		if strings.Contains(text, "apply?") {
			interrupt()
		}
	}))
	root.SetArgs([]string{"ctl", "--socket", path, "apply", "-f", write(t, fleetFile)})
	if err := root.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if fleet, _, _ := memory.Fleet(t.Context()); len(fleet.Services) != 0 {
		t.Error("it was applied all the same")
	}
}

func TestOthersWordsAreTextToATerminal(t *testing.T) {
	const hostile, spelled = "\x1b]0;mine\a\u009b2J\u202e\r", `\u001b]0;mine\u0007\u009b2J\u202e\`
	memory := &apitest.Memory{Stale: errors.New(hostile), Past: []*ballastv1.FleetChange{{Name: hostile, Role: "ctl", Changes: []string{hostile}}}}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	file := write(t, `"\e]0;mine\a": 1`)
	for _, command := range []string{"ctl history --socket " + path, "ctl history --json --socket " + path, "ctl fleet --socket " + path, "validate " + file} {
		shown, _ := atTerminal(t, "", strings.Fields(command)...)
		if strings.ContainsAny(strings.ReplaceAll(shown, "\r\n", "\n"), "\x1b\a\u009b\u202e\r") || !strings.Contains(shown, "mine") {
			t.Errorf("%s: the terminal was told %q", command, shown)
		}
		if strings.HasPrefix(command, "ctl") && !strings.Contains(shown, spelled) {
			t.Errorf("%s: %q does not say %q", command, shown, spelled)
		}
	}
	var said bytes.Buffer
	if status := cli.Main("test", []string{"ctl", "apply", "--dry-run", "--socket", path, "-f", write(t, "services: {\x1b]0;mine\a: 1}")}, &said); status == 0 || strings.ContainsAny(said.String(), "\x1b\a") {
		t.Errorf("status %d: the terminal was told %q", status, said.String())
	}
}

type writerFunc func(text string)

func (f writerFunc) Write(text []byte) (int, error) { f(string(text)); return len(text), nil }

func TestTheLiveLineOfADrainIsRenewedInPlace(t *testing.T) {
	left := uint64(3)
	memory := &apitest.Memory{Live: func(id uint16) uint64 {
		if id == 1 && left > 0 {
			left--
		}
		return left
	}}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, fleetFile))
	shown, err := atTerminal(t, "", "ctl", "--socket", path, "server", "drain", "web", "s1", "--deadline", "1h", "--wait")
	if err != nil || !strings.Contains(shown, "\r\x1b[K2 connections remain, the deadline is in ") || !strings.Contains(shown, "\r\x1b[K0 connections remain") ||
		!strings.Contains(shown, "\r\nserver s1 is drained: no connection is left\r\n") {
		t.Errorf("%v, %q", err, shown)
	}
}

func TestWhatHarmsClientsIsAskedAboutFirst(t *testing.T) {
	memory := &apitest.Memory{}
	path := filepath.Join(t.TempDir(), "ctl.sock")
	serve(t, memory, listen(t, "unix", path))
	ctl := &terminal{t, memory, []string{"ctl", "--socket", path}}
	ctl.must("apply", "--yes", "-f", write(t, fleetFile))
	ctl.must("server", "drain", "web", "s1")
	last := append(slices.Clone(ctl.reach), "server", "drain", "web", "s2")
	const warning = "WARNING: service web: no server is left that takes new connections: they fail"

	out, err := clitest.Run(last...)
	if err == nil || !strings.Contains(err.Error(), "nothing was changed: there is no terminal to ask at: say --yes") || !strings.Contains(out, warning) {
		t.Errorf("without a terminal: %v, said %q", err, out)
	}
	if shown, err := atTerminal(t, "n\n", last...); err == nil || !strings.Contains(shown, warning+"\r\ngo on? [y/N] ") {
		t.Errorf("answered n: %v, %q", err, shown)
	}
	if fleet, _, _ := memory.Fleet(t.Context()); fleet.Services[0].Servers[1].State != model.StateActive {
		t.Error("it was drained all the same")
	}
	if shown, err := atTerminal(t, "y\n", last...); err != nil || !strings.Contains(shown, "server s2: state active -> draining") {
		t.Errorf("answered y: %v, %q", err, shown)
	}
	ctl.must("server", "undrain", "web", "s2")
	ctl.expect("server drain web s2 --yes", "state active -> draining")
	memory.Live = func(uint16) uint64 { return 1 }
	ctl.refuse("service set web --affinity hash --dispatch maglev", "say --yes")
	memory.Live = nil
	ctl.must("service", "set", "web", "--affinity", "table") // keeps all
	ctl.must("service", "set", "web", "--affinity", "cookie")

	out, err = clitest.Run(append(slices.Clone(ctl.reach), "apply", "--dry-run", "-f", write(t, "services: []\n"))...)
	if !errors.Is(err, command.ExitStatus(2)) || !strings.Contains(out, "- service web: removed\nlive: service web: 0 connections end\nWARNING: service web: it goes") {
		t.Errorf("the plan: %v, %q", err, out)
	}
}
