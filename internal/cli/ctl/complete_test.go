package ctl_test

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/cli"
)

// completed is what a shell is told to suggest, and what it would show besides.
func completed(t *testing.T, words ...string) (suggested []string, said string) {
	t.Helper()
	var out, complaints bytes.Buffer
	root := cli.Root("test")
	root.SetOut(&out)
	root.SetErr(&complaints)
	root.SetArgs(append([]string{"__complete"}, words...))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Errorf("%v: %v", words, err)
	}
	for line := range strings.Lines(out.String()) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") {
			suggested = append(suggested, word)
		}
	}
	return suggested, strings.ReplaceAll(complaints.String(), "Completion ended with directive: ShellCompDirectiveNoFileComp\n", "")
}

func TestArgumentsComplete(t *testing.T) {
	home(t)
	runDir := t.TempDir()
	socket := filepath.Join(runDir, "lb7", "ctl.sock")
	sayCtl(t, "context set prod --instance x")
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	defer aLoadBalancer(t, socket)()
	for line, want := range map[string]string{
		"ctl --socket " + socket + " server list ":           "web",
		"ctl --socket " + socket + " servers ":               "web",
		"ctl --socket " + socket + " server drain web ":      "s1 s2",
		"ctl --socket " + socket + " server drain nosuch ":   "",
		"ctl --socket " + socket + " server drain web s1 ":   "",
		"ctl --socket " + socket + " service set ":           "web",
		"ctl --socket " + socket + " service add ":           "",
		"ctl --socket " + socket + " node forget ":           "lb1 s1",
		"ctl --socket " + socket + " pki revoke ":            "lb1 s1",
		"ctl --socket " + socket + " controller remove ":     "",
		"ctl --socket " + socket + " trace --service ":       "web",
		"ctl --run-dir " + runDir + " --instance ":           "lb7",
		"ctl context use ":                                   "prod",
		"ctl --context ":                                     "prod",
		"ctl -o ":                                            "table wide json yaml",
		"ctl node show lb1 --role ":                          "controller lb agent",
		"lb --xdp-mode ":                                     "auto native generic",
		"lb --log-format ":                                   "text json",
		"ctl --socket /nowhere --tls-dir /no server drain ":  "",
		"ctl --controller c1:nonsense node drain ":           "",
		"ctl --tls-dir /nowhere --controller c1 node drain ": "",
	} {
		suggested, said := completed(t, strings.Split(line, " ")...)
		if have := strings.Join(suggested, " "); have != want || said != "" {
			t.Errorf("%s: %q, not %q; said %q", line, have, want, said)
		}
	}
	for line, want := range map[string]string{"ctl service set web --dispatch ": "maglev"} {
		if suggested, _ := completed(t, strings.Split(line, " ")...); !slices.Contains(suggested, want) || len(suggested) < 5 {
			t.Errorf("%s: %v, without %s", line, suggested, want)
		}
	}
}

func TestCompletionDoesNotWaitForADaemonThatIsSilent(t *testing.T) {
	home(t)
	socket := filepath.Join(t.TempDir(), "silent.sock")
	silent, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	go func() {
		for {
			connection, err := silent.Accept()
			if err != nil {
				return
			}
			go io.Copy(io.Discard, connection)
		}
	}()
	if suggested, said := completed(t, "ctl", "--socket", socket, "server", "list", ""); len(suggested) > 0 || said != "" {
		t.Errorf("%v, %q", suggested, said)
	}
}
