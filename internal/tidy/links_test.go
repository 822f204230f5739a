// What the product links: nothing of the laboratory, and of other people's modules those that links.txt lists.
package tidy

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// usesLaboratory are the folders outside internal/lab that import it: its command, and the tool that writes both programs' manuals.
var usesLaboratory = []string{"cmd/ballast-lab", "deploy/packages/man"}

// testsWithLaboratory are the folders whose tests need the laboratory.
var testsWithLaboratory = []string{
	"internal/cli",      // help and documents of both programs
	"internal/linux/lb", // packets of the benchmark
	"test/e2e",          // scenarios
}

func TestOnlyTheLaboratoryImportsIt(t *testing.T) {
	_, trees := parse(t)
	for name, tree := range trees {
		folder := path.Dir(name)
		if isLaboratory(name) || slices.Contains(usesLaboratory, folder) || isTest(name) && slices.Contains(testsWithLaboratory, folder) {
			continue
		}
		for _, imported := range imports(tree) {
			if isLaboratory(imported) {
				t.Errorf("%s imports %s: the product knows nothing of the laboratory", name, imported)
			}
		}
	}
}

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
		if isLaboratory(fields[0]) || layer(fields[0]) == "testkit" {
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
