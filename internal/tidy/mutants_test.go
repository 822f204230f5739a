package tidy

import (
	"bytes"
	"fmt"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"
)

var mutantTest = regexp.MustCompile(`(?m)^test: \./(\S+) (Test\w+)$`)

// A mutant that does not apply, or whose test is gone, holds nobody to its promise (test/mutants/run).
func TestMutantsApplyAndNameTests(t *testing.T) {
	mutants := 0
	for _, name := range files(t, ".patch") {
		if path.Dir(name) != "test/mutants" {
			continue
		}
		mutants++
		header, _, _ := bytes.Cut(read(t, name), []byte("\n--- "))
		named := mutantTest.FindAllSubmatch(append(header, '\n'), -1)
		if !bytes.HasPrefix(header, []byte("claim: ")) || len(named) == 0 || len(named) != bytes.Count(header, []byte("\n")) {
			t.Errorf("%s does not begin with `claim: ...` and lines of `test: ./PACKAGE TEST`", name)
		}
		for _, test := range named {
			if !definesTest(t, string(test[1]), string(test[2])) {
				t.Errorf("%s names %s, which ./%s does not have", name, test[2], test[1])
			}
		}
		apply := exec.Command("git", "apply", "--check", name)
		apply.Dir = root
		if out, err := apply.CombinedOutput(); err != nil {
			t.Errorf("%s does not apply: write it anew, or remove it with its promise: %s", name, out)
		}
	}
	if mutants < 30 {
		t.Errorf("only %d mutants", mutants)
	}
}

// definesTest reports whether a package has a test.
func definesTest(t *testing.T, folder, test string) bool {
	t.Helper()
	for _, name := range files(t, "_test.go") {
		if path.Dir(name) == folder && strings.Contains(string(read(t, name)), fmt.Sprintf("func %s(", test)) {
			return true
		}
	}
	return false
}
