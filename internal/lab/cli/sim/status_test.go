package sim_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/cli"
	"github.com/ballast-lb/ballast/internal/lab/sim"
)

func TestTheStatusTellsAFalseClaimFromOneThatTooFewSeedsWereRunFor(t *testing.T) {
	written := func(verdicts ...sim.Verdict) string {
		result := sim.Result{Experiment: "cheetah-2b", Title: "A test", Seeds: []uint64{1, 2, 3}}
		for i, verdict := range verdicts {
			result.Findings = append(result.Findings, sim.Finding{ID: fmt.Sprint("claim", i), What: "one", Values: []float64{1, 1, 1},
				Ours: sim.Estimate{Mean: 1, Runs: 3}, Band: sim.Band{Low: 1, High: 2}, Verdict: verdict})
		}
		text, err := json.Marshal([]sim.Result{result})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "results.json")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, one := range []struct {
		file   string
		status int
		says   string
	}{
		{written(sim.Pass, sim.Shown), 0, ""},
		{written(sim.Pass, sim.Inconclusive), 2, "cheetah-2b claim1: run more seeds"},
		{written(sim.Inconclusive, sim.Fail), 1, "claims fail: cheetah-2b claim1"},
	} {
		var stderr bytes.Buffer
		arguments := []string{"sim", "report", "cheetah-2b", "--from", one.file, "--markdown", filepath.Join(t.TempDir(), "results.md")}
		if status := cli.Main("test", arguments, &stderr); status != one.status || !strings.Contains(stderr.String(), one.says) {
			t.Errorf("status %d: %s", status, &stderr)
		}
	}
}
