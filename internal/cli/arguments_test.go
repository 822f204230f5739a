package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/cli"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
	"github.com/ballast-lb/ballast/internal/cli/command"
	labcli "github.com/ballast-lb/ballast/internal/lab/cli"
)

func TestMain(m *testing.M) { clitest.Main(m) }

// program is the program as a process.
func program(t *testing.T, arguments ...string) *exec.Cmd {
	t.Helper()
	return exec.Command("/proc/self/exe", arguments...)
}

// harmless is a tree with commands that do nothing but say that they ran.
func harmless(t *testing.T, root *cobra.Command, ran *string) *cobra.Command {
	t.Helper()
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	everyCommand(root, func(cmd *cobra.Command) {
		if !group(cmd) && cmd.Name() != "help" {
			cmd.Run, cmd.PreRun, cmd.PreRunE = nil, nil, nil
			cmd.RunE = func(*cobra.Command, []string) error { *ran = cmd.CommandPath(); return nil }
		}
	})
	return root
}

// group reports whether a command is nothing but the name of others.
func group(cmd *cobra.Command) bool {
	if noun, of := strings.CutPrefix(cmd.CommandPath(), "ballast ctl "); of {
		return slices.Contains(strings.Fields("server service node replica key ticket counter connection suspect session quic config pki context"), noun)
	}
	return slices.Contains([]string{"ballast", "ballast-lab", "ctl", "bench", "sim", "completion"}, cmd.Name())
}

func everyCommand(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, child := range cmd.Commands() {
		everyCommand(child, do)
	}
}

// roots are our programs' commands.
var roots = map[string]func(version string) *cobra.Command{"ballast": cli.Root, "ballast-lab": labcli.Root}

// run returns the status that a command line ends with in a harmless tree, its messages, and which command ran.
func run(t *testing.T, program string, arguments ...string) (status int, said, ran string) {
	t.Helper()
	root := harmless(t, roots[program]("test"), &ran)
	root.SetArgs(arguments)
	cmd, err := root.ExecuteContextC(t.Context())
	var text bytes.Buffer
	status = command.Finish(nil, cmd, err, &text)
	return status, text.String(), ran
}

func TestNoCommandIsHidden(t *testing.T) {
	for _, root := range roots {
		everyCommand(root("test"), func(cmd *cobra.Command) {
			if cmd.Hidden {
				t.Errorf("%s is hidden", cmd.CommandPath())
			}
		})
	}
}

var positional = regexp.MustCompile(` \[?[A-Z]+(\.\.\.)?\]?`)

// Whoever adds a command finds here that it refuses what it does not know.
func TestEveryCommandRefusesWhatItDoesNotKnow(t *testing.T) {
	for name, root := range roots {
		if commands := refusesSurplus(t, name, root("test")); commands < map[string]int{"ballast": 60, "ballast-lab": 15}[name] {
			t.Errorf("looked at %d commands only of %s", commands, name)
		}
	}
}

// refusesSurplus gives each command of a program arguments and flags that it does not have.
func refusesSurplus(t *testing.T, program string, root *cobra.Command) (commands int) {
	t.Helper()
	everyCommand(root, func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		commands++
		usage := flagsAndGroups.ReplaceAllString(cmd.Use, "")
		if !strings.Contains(cmd.Use, "...") || group(cmd) {
			surplus := append(slices.Clone(path), strings.Fields(strings.Repeat("nonsense ", 9))...)
			if status, said, ran := run(t, program, surplus...); status != command.StatusUsage || ran != "" || !strings.Contains(said, "nonsense") {
				t.Errorf(program+" %s: status %d, said %q, ran %q", strings.Join(surplus, " "), status, said, ran)
			}
		}
		if mandatory := positional.FindString(usage); group(cmd) || (mandatory != "" && !strings.Contains(mandatory, "[")) {
			status, said, ran := run(t, program, path...)
			if status != command.StatusUsage || ran != "" || !strings.Contains(said, "is missing") {
				t.Errorf(program+" %s: status %d, said %q, ran %q", strings.Join(path, " "), status, said, ran)
			}
		}
		flag := append(slices.Clone(path), "--nonsense")
		if status, said, ran := run(t, program, flag...); !cmd.DisableFlagParsing && (status != command.StatusUsage || ran != "" || !strings.Contains(said, "--nonsense")) {
			t.Errorf(program+" %s: status %d, said %q, ran %q", strings.Join(flag, " "), status, said, ran)
		}
	})
	return commands
}

// flagsAndGroups is what a Use says of flags, whose values look like arguments.
var flagsAndGroups = regexp.MustCompile(`\[?--?[A-Za-z]+ [A-Za-z|:,\[\]]+(\.\.\.)?\]?`)

func TestMisspeltCommandsFailWithASuggestion(t *testing.T) {
	for line, want := range map[string]string{
		"lbb":                                  "`ballast lb`",
		"lbb -f x.yaml":                        "`ballast lb`",
		"ctl sevrers":                          "`ballast ctl servers`",
		"ctl --json sevrers web":               "`ballast ctl servers`",
		"ctl server lst":                       "`ballast ctl server list`",
		"ctl service ls":                       "`ballast ctl service list`",
		"ctl key get":                          "`ballast ctl key list`",
		"ctl get servers":                      "`ballast ctl server list`",
		"ctl list node":                        "`ballast ctl node list`",
		"ctl server ad web 1.2.3.4":            "`ballast ctl server add`",
		"ctl server drian web s1":              "`ballast ctl server drain`",
		"ctl server drian web s1 --wait":       "`ballast ctl server drain`",
		"ctl counter rest":                     "`ballast ctl counter reset`",
		"lab run churn":                        "has no command \"lab\"",
		"help ctl sevrers":                     "`ballast ctl servers`",
		"ctl server drain web":                 "SERVER is missing: the form is `ballast ctl server drain SERVICE SERVER",
		"ctl server drain":                     "SERVICE is missing",
		"ctl server weight web s1":             "WEIGHT is missing",
		"ctl server weight web s1 -1":          "-1 is taken for a flag, and no number here may be negative",
		"ctl server weight web s1 1 2":         `argument "2" is one too many`,
		"ctl server drain web s1 --dedline":    "did you mean --deadline?",
		"ctl server drain web s1 --deadline 5": "invalid argument \"5\"",
		"ctl node add lb3":                     "[tier bgp-as l2-interface]",
		"agent":                                "[file controller detach]",
		"ctl frobnicate":                       "see `ballast ctl --help`",
		"completion nosuchshell":               "nosuchshell",
	} {
		if status, said, ran := run(t, "ballast", strings.Fields(line)...); status != command.StatusUsage || ran != "" || !strings.Contains(said, want) {
			t.Errorf("ballast %s: status %d, ran %q, said %q, which lacks %q", line, status, ran, said, want)
		}
	}
	for _, line := range []string{"ctl servers", "ctl servers web", "ctl counters", "ctl counters reset", "help", "help ctl server", "ctl server --help", "completion bash"} {
		if status, said, _ := run(t, "ballast", strings.Fields(line)...); status != 0 {
			t.Errorf("ballast %s: status %d: %s", line, status, said)
		}
	}
}

func TestDryRunsKeepTheirStatuses(t *testing.T) {
	for _, line := range []string{"ctl apply --dry-run", "ctl apply --dry-run --nonsense", "ctl server remove --dry-run", "ctl apply -f x --dry-run surplus"} {
		if status, said, ran := run(t, "ballast", strings.Fields(line)...); status != command.StatusFailed || ran != "" {
			t.Errorf("ballast %s: status %d, said %q: 2 would tell that something would change", line, status, said)
		}
	}
	open := fmt.Errorf("add: %w", connect.NewError(connect.CodeUnknown, errors.New("it may or may not have been carried out")))
	if status := command.Finish(nil, &cobra.Command{}, open, io.Discard); status != 3 {
		t.Errorf("an outcome that is not known ends with %d", status)
	}
	if status := command.Finish(nil, &cobra.Command{}, command.ExitStatus(2), io.Discard); status != 2 {
		t.Errorf("a dry run that found differences: status %d", status)
	}
}

func TestTheProcessEndsWithTheStatusOfItsCommand(t *testing.T) {
	for line, want := range map[string]int{
		"version":                            0,
		"ctl sevrers":                        command.StatusUsage,
		"ctl --socket /nonexistent servers":  command.StatusFailed,
		"lb -f a --controller b":             command.StatusUsage,
		"ctl --socket /nonexistent apply -x": command.StatusUsage,
		"ctl apply --nonsense --dry-run":     command.StatusFailed,
	} {
		var exit *exec.ExitError
		status := 0
		if err := program(t, strings.Fields(line)...).Run(); errors.As(err, &exit) {
			status = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if status != want {
			t.Errorf("ballast %s: status %d, want %d", line, status, want)
		}
	}
}

func TestWhatIsInterruptedEndsWithTheSignalsStatus(t *testing.T) {
	for _, c := range []struct {
		signal unix.Signal
		want   int
		arg    string // after ctl
		open   bool   // it may have been carried out
	}{{unix.SIGINT, 130, "servers", false}, {unix.SIGTERM, 143, "servers", false}, {unix.SIGINT, 130, "server weight web s1 5", true}} {
		signal, want := c.signal, c.want
		socket := filepath.Join(t.TempDir(), "silent.sock")
		silent, err := net.Listen("unix", socket) // takes a question and never answers
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		process := program(t, append([]string{"ctl", "--socket", socket}, strings.Fields(c.arg)...)...)
		said, err := process.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		asked, err := silent.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer asked.Close()
		if err := process.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(said)
		var exit *exec.ExitError
		if err := process.Wait(); !errors.As(err, &exit) || exit.ExitCode() != want || !strings.Contains(string(text), "interrupted by "+unix.SignalName(signal)) {
			t.Errorf("%s: %v, want status %d; said %q", unix.SignalName(signal), err, want, text)
		}
		if open := strings.Contains(string(text), "may or may not have been carried out"); open != c.open {
			t.Errorf("%s: said %q", c.arg, text)
		}
	}
}
