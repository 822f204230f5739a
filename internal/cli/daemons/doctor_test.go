package daemons_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/cli/clitest"
)

// Controllers have nothing of the host judged: their findings are all that is printed.
func TestDoctorNamesTheDaemonOfEachFinding(t *testing.T) {
	dir := t.TempDir()
	for name, problems := range map[string][]string{"c1": nil, "c2": {"server s2 fails: look there"}} {
		server := api.NewServer()
		server.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) {
			return map[string]any{"role": "controller", "ready": true, "problems": problems}, nil
		})
		listener, err := api.Listen(api.SocketPath(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		go server.Serve(t.Context(), listener)
	}
	doctor := func(more ...string) (string, error) {
		return clitest.Run(append([]string{"doctor", "--run-dir", dir, "--state-dir", dir}, more...)...)
	}
	text, err := doctor()
	if err == nil || !strings.Contains(err.Error(), "1 problem") {
		t.Errorf("the worst decides: %v", err)
	}
	first, second, both := strings.Cut(text, "instance c2, controller\n")
	if !both || !strings.HasPrefix(first, "instance c1, controller\n  ok") || !strings.Contains(second, "reports: server s2 fails") ||
		strings.Count(text, "1 problem, 0 warnings, 1 ok") != 1 {
		t.Errorf("%s", text)
	}
	text, err = doctor("--instance", "c1")
	if err != nil || strings.Contains(text, "instance c1, controller\n") || strings.Contains(text, "s2") {
		t.Errorf("asked for one: %v\n%s", err, text)
	}
	text, _ = doctor("-o", "json")
	var findings []struct{ Instance, Role, Check, Severity string }
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&findings); err != nil || len(findings) != 2 {
		t.Fatalf("%v: %s", err, text)
	}
	if last := findings[1]; last.Instance != "c2" || last.Role != "controller" || last.Check != "daemon" || last.Severity != "problem" {
		t.Errorf("%+v", last)
	}
}
