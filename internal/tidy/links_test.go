// What the product links: nothing of the laboratory, and of other people's modules those that links.txt lists.
package tidy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// laboratory are folders of internal that only ballast-lab, tests and the packages' tools may use.
var laboratory = []string{"lab", "sim", "bench", "data", "script"}

func TestTheProductLinksNothingOfTheLaboratory(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", "./cmd/ballast")
	list.Dir, list.Stderr = root, os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if slices.Contains(laboratory, layer(fields[0])) {
			t.Errorf("cmd/ballast links %s", fields[0])
		}
		if len(fields) == 2 && fields[1] != strings.TrimSuffix(module, "/") && !slices.Contains(modules, fields[1]) {
			modules = append(modules, fields[1])
		}
	}
	slices.Sort(modules)
	const name = "cmd/ballast/links.txt"
	linked := strings.Join(modules, "\n") + "\n"
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(filepath.Join(root, name), []byte(linked), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if listed := string(read(t, name)); listed != linked {
		t.Errorf("cmd/ballast links other modules than %s lists: review them, then UPDATE_DOCS=1 go test ./internal/tidy -run Links\nlinked:\n%s", name, linked)
	}
}
