// Package e2e holds Ballast to its promises, one file per promise: each runs a scenario of `ballast-lab`
// with the real binary, real clients and real servers in network namespaces.
package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// longVariable makes the tests that have a longer form take it (make test-long).
const longVariable = "BALLAST_LONG"

var binary string // of ballast-lab

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "ballast-e2e-")
	if err == nil {
		binary = filepath.Join(dir, "ballast-lab")
		build := exec.Command("go", "build", "-o", dir+"/", "github.com/ballast-lb/ballast/cmd/...")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "build ballast: %v: generate its BPF objects with `make generate` first\n", err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

func long() bool { return os.Getenv(longVariable) != "" }

// measured are the scenarios whose promise is a comparison of speeds. They run alone; the others mostly wait, and run side by side.
var measured = []string{"bimodal", "choices", "elastic", "even", "quic-full", "quic-tail", "session-benefit", "session-sweep", "throughput", "uneven", "uneven-links", "weight-loss"}

// run runs a scenario, fails the test when its promise is broken, and returns the result.
func run(t *testing.T, name string, arguments ...string) scenario.Result {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces and BPF")
	}
	if testing.Short() {
		t.Skip("a whole scenario takes too long for -short")
	}
	if !slices.Contains(measured, name) {
		t.Parallel()
	}
	command := exec.CommandContext(t.Context(), binary, append([]string{"run", name, "--json"}, arguments...)...)
	var output, progress bytes.Buffer
	command.Stdout, command.Stderr = &output, &progress
	runErr := command.Run()
	t.Logf("%s", progress.Bytes())
	var result scenario.Result
	if err := json.Unmarshal(output.Bytes(), &result); err != nil {
		t.Fatalf("%v; no result: %v: %s", runErr, err, output.Bytes())
	}
	var exit *exec.ExitError
	if runErr != nil && !errors.As(runErr, &exit) {
		t.Fatal(runErr)
	}
	if runErr != nil || !result.Kept {
		for _, trial := range result.Trials {
			t.Logf("%s: %+v; TCP %v, verdicts %v", trial.Name, trial.Tally, trial.TCP, trial.Counters)
		}
		t.Fatalf("%v: repeat with --seed %d: %s: %q %s", runErr, result.Seed, result.Outcome, result.Failures, result.Error)
	}
	return result
}

// timestampsAccepted fails the test when a server's or client's TCP rejected a timestamp that Ballast writes or restores. TSval on its way
// to servers is the client's own: an upload that is overtaken when routes change is rejected there (PAWSEstab), and sent again.
func timestampsAccepted(t *testing.T, trial world.Result) {
	t.Helper()
	for node, counters := range trial.TCP {
		for _, rejected := range []string{"TSEcrRejected", "PAWSEstab", "PAWSActive"} {
			if counters[rejected] != 0 && (rejected != "PAWSEstab" || node == "client") {
				t.Errorf("%s: %s counted %d %s", trial.Name, node, counters[rejected], rejected)
			}
		}
	}
}
