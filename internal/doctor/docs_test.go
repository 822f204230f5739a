package doctor_test

import (
	"os"
	"path/filepath"
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

func TestExampleFleetIsValid(t *testing.T) {
	if _, err := config.Load("../../deploy/ballast.yaml"); err != nil {
		t.Error(err)
	}
}

// What a finding is called stands in the help, in front of what is checked.
func TestHelpNamesEveryCheck(t *testing.T) {
	named := map[string]bool{}
	checks, _, _ := strings.Cut(readRepository(t, "internal/cli/help/doctor.txt"), "Examples:")
	for _, row := range regexp.MustCompile(`(?m)^ {2}(\S.*?)(?: {2}|$)`).FindAllStringSubmatch(checks, -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			named[name] = true
		}
	}
	paths, err := filepath.Glob("*.go")
	must(t, err)
	found := map[string]bool{}
	for _, path := range paths {
		if !strings.HasSuffix(path, "_test.go") {
			for _, name := range regexp.MustCompile(`(?:\bok\(|Finding\{+|[ \t]\{)"([a-z_ ]+)", [^{]`).FindAllStringSubmatch(readRepository(t, "internal/doctor/"+path), -1) {
				found[name[1]] = true
			}
		}
	}
	for name := range found {
		if !named[name] {
			t.Errorf("ballast doctor --help does not name %q", name)
		}
	}
	for name := range named {
		if !found[name] {
			t.Errorf("ballast doctor --help names %q, and nothing is called so", name)
		}
	}
}
