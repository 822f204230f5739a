package daemons_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/cli/clitest"
	"github.com/ballast-lb/ballast/internal/config"
)

func TestMain(m *testing.M) { clitest.Main(m) }

const validFile = `keys:
  placement: 000102030405060708090a0b0c0d0e0f
  current: 1
  cookie: {1: 00112233445566778899aabbccddeeff}
services:
  - name: web
    vip: 198.51.100.10
    ports: [80]
    servers: [{name: s1, address: 10.1.0.11, id: 1}, {name: s2, address: 10.1.0.12, id: 2}]
`

// datagrams has a service by UDP, whose servers are s1 with a TCP service of the same VIP, and s2 without.
func datagrams(check string) string {
	return strings.Replace(validFile, ", {name: s2, address: 10.1.0.12, id: 2}", "", 1) + fmt.Sprintf(`  - name: dns
    vip: 198.51.100.10
    ports: [53]
    protocol: udp
    health: {check: %s}
    servers: [{name: s1, address: 10.1.0.11, id: 1}, {name: s2, address: 10.1.0.12, id: 2}]
`, check)
}

func TestValidateSaysWhatTheDaemonsWouldSay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ballast.yaml")
	table := strings.Replace(validFile, "ports: [80]", "ports: [80]\n    affinity: table\n    table: {entries: 4194304}", 1)
	for _, c := range []struct {
		content, arguments string
		mode               os.FileMode
		valid              bool
		says, lacks        string
	}{
		{validFile, "", 0o600, true, "valid for role lb: 1 service, 2 servers", "warning"},
		{validFile, "", 0o644, true, "others can read the keys (mode 0644): chmod 600 " + path, "refused"},
		{validFile, "", 0o640, true, "mode 0640", ""},
		{validFile, "--role agent --server s1", 0o600, true, "valid for role agent", "warning"},
		{validFile, "--role agent --server s9", 0o600, true, `no service has a server "s9"`, ""},
		{validFile + "    dispatch: choices\n    forward: gue\n", "--role agent --server s1", 0o600, false, "tunnels_from: service web has dispatch choices", ""},
		{validFile + "    dispatch: choices\n    forward: gue\n", "", 0o600, true, "valid for role lb", ""},
		{strings.ReplaceAll(validFile, "name: s2", "name: s1"), "", 0o600, false, path + ":9: services[0].servers[1].name", ""},
		{strings.ReplaceAll(validFile, "vip:", "vpi:"), "--role agent", 0o600, false, path + ":7: services[0].vpi: unknown key: did you mean vip?", ""},
		{strings.ReplaceAll(validFile, ", id: 2", ""), "--role fleet", 0o600, true, "valid for role fleet", ""},
		{validFile[strings.Index(validFile, "services:"):], "--role fleet", 0o600, true, "valid for role fleet", ""},
		{validFile[strings.Index(validFile, "services:"):], "", 0o600, false, "keys.placement", ""},
		{validFile + "    dispatch: rr\n    affinity: hash\n", "--role fleet", 0o600, false, ":10: services[0].dispatch", ""},
		{table, "", 0o600, false, "(ballast lb --max-entries)", ""},
		{table, "--max-entries 8388608", 0o600, true, "valid for role lb", ""},
		{strings.ReplaceAll(validFile, "id: 1}", "id: 1, weight: 0}, {name: s3, address: 10.1.0.13, id: 3, state: draining}"), "", 0o600, true, "valid", "no server takes"},
		{strings.Replace(validFile, "[{name: s1, address: 10.1.0.11, id: 1}, {name: s2, address: 10.1.0.12, id: 2}]", "[]", 1), "", 0o600, true, "service web: no server takes new connections", ""},
		{datagrams("tcp, port: 80"), "", 0o600, true, "service dns: check tcp sees neither the tunnel to s2 nor the VIP there", "s1"},
		{datagrams("udp, send: ping"), "", 0o600, true, "valid for role lb", "warning"},
		{datagrams("tcp, port: 80") + "    forward: nat\n    return: through\n", "", 0o600, true, "valid for role lb", "warning"},
		{"\ufeff" + validFile, "", 0o600, true, "valid for role lb", ""},
		{"", "", 0o600, false, "the file is empty", ""},
	} {
		must(t, os.WriteFile(path, []byte(c.content), c.mode))
		must(t, os.Chmod(path, c.mode))
		out, err := clitest.Run(append([]string{"validate", path}, strings.Fields(c.arguments)...)...)
		if (err == nil) != c.valid || !strings.Contains(out, c.says) || (c.lacks != "" && strings.Contains(out, c.lacks)) {
			t.Errorf("validate %s of\n%s: %v, said %q, wanted %q", c.arguments, c.content, err, out, c.says)
		}
		if _, loaded := config.Load(path); c.arguments == "" && !strings.Contains(c.says, "max-entries") && (loaded == nil) != (err == nil) {
			t.Errorf("validate says %v of\n%s and daemons say %v", err, c.content, loaded)
		}
	}
}

func TestValidateAnswersProgramsInJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ballast.yaml")
	must(t, os.WriteFile(path, []byte(strings.ReplaceAll(validFile, "id: 2", "id: 0")), 0o600))
	out, err := clitest.Run("validate", path, "--json")
	var answer struct {
		Valid  bool
		Errors []struct {
			Line                  int
			Path, Problem, Remedy string
		}
		Warnings []string
	}
	if jsonErr := json.Unmarshal([]byte(out), &answer); jsonErr != nil || err == nil || answer.Valid || len(answer.Errors) != 1 ||
		answer.Errors[0].Line != 9 || answer.Errors[0].Path != "services[0].servers[1].id" || answer.Errors[0].Remedy != "use 1 to 32767" || answer.Warnings == nil {
		t.Errorf("%v %v: %s", err, jsonErr, out)
	}
	if _, err := clitest.Run("validate", filepath.Join(t.TempDir(), "missing.yaml")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// As `ballast validate <(...)` names one.
func TestValidateReadsAPipe(t *testing.T) {
	reader, writer, err := os.Pipe()
	must(t, err)
	defer reader.Close()
	go func() {
		writer.WriteString(validFile)
		writer.Close()
	}()
	out, err := clitest.Run("validate", fmt.Sprintf("/proc/self/fd/%d", reader.Fd()))
	if err != nil || !strings.Contains(out, "valid for role lb: 1 service, 2 servers") || strings.Contains(out, "warning") {
		t.Errorf("%v, said %q", err, out)
	}
}

func TestWhoWaitsForTheEndOfAPipeCanInterruptIt(t *testing.T) {
	for _, line := range []string{"validate", "ctl apply -f"} {
		pipe := filepath.Join(t.TempDir(), "ballast.yaml")
		must(t, unix.Mkfifo(pipe, 0o600))
		process := exec.Command("/proc/self/exe", append(strings.Fields(line), pipe)...)
		must(t, process.Start())
		writer, err := os.OpenFile(pipe, os.O_WRONLY, 0) // waits until it is read
		must(t, err)
		must(t, process.Process.Signal(os.Interrupt))
		err = process.Wait()
		writer.Close()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 130 {
			t.Errorf("%s: %v, want status 130", line, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
