package doctor_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/config"
)

func readRepository(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + name)
	must(t, err)
	return string(text)
}

// The operators' guide explains every counter; metrics: internal/metricstest.
func TestMonitorExplainsEveryCounter(t *testing.T) {
	guide := readRepository(t, "docs/monitor.md")
	explained := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(guide, -1) {
		explained[row[1]] = true
	}
	verdict := regexp.MustCompile(`(?m)^\t([A-Z]+_[A-Z_]+),`)
	for _, header := range []string{"bpf/state/verdict.h", "bpf/state/agent.h"} {
		names := verdict.FindAllStringSubmatch(readRepository(t, header), -1)
		for _, name := range names {
			lower := strings.ToLower(name[1])
			if lower == "verdict_continue" || lower == "agent_continue" || lower == "agent_verdicts" {
				continue
			}
			if !explained[lower] {
				t.Errorf("docs/monitor.md does not explain %s of %s", lower, header)
			}
		}
		if len(names) < 20 {
			t.Errorf("%s: only %d verdicts found", header, len(names))
		}
	}
}

func TestExampleFleetIsValid(t *testing.T) {
	if _, err := config.Load("../../deploy/ballast.yaml"); err != nil {
		t.Error(err)
	}
}
