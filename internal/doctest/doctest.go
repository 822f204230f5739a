// Package doctest keeps what documents show equal to what the program does.
package doctest

import (
	"fmt"
	"os"
	"regexp"
	"testing"
)

// Show compares the blocks of a kind in some documents, between marks like
//
//	<!-- bytes: NAME -->
//	<!-- end -->
//
// with those that there are by name. Every block has its place. UPDATE_DOCS=1 writes them anew.
func Show(t *testing.T, kind string, blocks map[string]string, documents ...string) {
	t.Helper()
	marked := regexp.MustCompile(`(?s)<!-- ` + kind + `: ([a-z0-9-]+) -->\n.*?<!-- end -->`)
	used := map[string]bool{}
	for _, name := range documents {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		fresh := marked.ReplaceAllStringFunc(string(text), func(old string) string {
			block := marked.FindStringSubmatch(old)[1]
			used[block] = true
			if blocks[block] == "" {
				t.Errorf("%s: nothing makes the %s of %s", name, kind, block)
				return old
			}
			return fmt.Sprintf("<!-- %s: %s -->\n%s<!-- end -->", kind, block, blocks[block])
		})
		if fresh == string(text) {
			continue
		}
		if os.Getenv("UPDATE_DOCS") == "" {
			t.Errorf("%s does not show what the program does: run its tests with UPDATE_DOCS=1: -run %s", name, t.Name())
		} else if err := os.WriteFile(name, []byte(fresh), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for block := range blocks {
		if !used[block] {
			t.Errorf("no document shows %s", block)
		}
	}
}
