// Package metricstest checks what daemons tell Prometheus, and what deploy/ makes of it.
package metricstest

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// Promtool is the environment variable with the path of promtool, which checks then, too.
const Promtool = "BALLAST_PROMTOOL"

var (
	declared = regexp.MustCompile(`(?:NewDesc|counter)\(\s*"(ballast_[a-z0-9_]+)",\s*"(?:[^"\\]|\\.)*",\s*(nil|\[\]string\{[^}]*\}|"[a-z]+")`)
	mention  = regexp.MustCompile(`"ballast_[a-z0-9_]+"`)
	quoted   = regexp.MustCompile(`"([a-z]+)"`)
	exposed  = regexp.MustCompile(`(?m)^# TYPE (ballast_[a-z0-9_]+) `)
)

// Root is the repository's directory.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../..")
}

// Declared are the metrics that daemons declare, with their labels.
func Declared(t testing.TB) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(filepath.Join(Root(), "internal"), func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		source, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(source), `client_golang/prometheus"`) {
			return err
		}
		rows := declared.FindAllStringSubmatch(string(source), -1)
		if mentions := len(mention.FindAll(source, -1)); mentions != len(rows) {
			t.Errorf("%s: of %d metrics only %d are declared as is known here", name, mentions, len(rows))
		}
		for _, row := range rows {
			labels := []string{}
			for _, label := range quoted.FindAllStringSubmatch(row[2], -1) {
				labels = append(labels, label[1])
			}
			found[row[1]] = labels
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Check fails the test if a daemon's answer to Prometheus breaks the conventions: a metric without HELP, for one.
func Check(t testing.TB, text string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	for _, p := range problems {
		t.Errorf("metric %s: %s", p.Metric, p.Text)
	}
	if !exposed.MatchString(text) {
		t.Errorf("no metric of Ballast in\n%s", text)
	}
	if promtool := os.Getenv(Promtool); promtool != "" {
		check := exec.Command(promtool, "check", "metrics")
		check.Stdin = strings.NewReader(text)
		if output, err := check.CombinedOutput(); err != nil {
			t.Errorf("promtool check metrics: %v\n%s", err, output)
		}
	}
}
