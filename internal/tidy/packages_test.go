package tidy

import (
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documentation is where each package has its documents, by the file that describes the package.
var documentation = map[string]string{"deploy/packages/nfpm.yaml": "/usr/share/doc/ballast/", "deploy/packages/nfpm-lab.yaml": "/usr/share/doc/ballast-lab/",
	"deploy/packages/nfpm-kube.yaml": "/usr/share/doc/ballast-kube/"}

var (
	packagedRow = regexp.MustCompile(`(?m)src: "?([^",}]+)"?, dst: ([^,}]+)`)
	namedFile   = regexp.MustCompile(`\b(docs/[a-z]+/[a-z0-9-]+\.md|examples/[a-z][a-z/-]*(?:\.yaml)?)`)
)

// packagedDocuments are the files of the repository that a package installs as its documents, by their names there.
func packagedDocuments(t *testing.T, description string) map[string]string {
	all := files(t)
	found := map[string]string{}
	for _, row := range packagedRow.FindAllStringSubmatch(string(read(t, description)), -1) {
		folder, below := strings.CutPrefix(row[2], documentation[description])
		for _, name := range all {
			if matches, err := path.Match(row[1], name); err != nil {
				t.Fatalf("%s: %v", row[1], err)
			} else if matches && below {
				found[folder+filepath.Base(name)] = name
			}
		}
	}
	return found
}

// Help, manual pages and errors are read where no source is.
func TestPackagesHaveWhatTheProgramNames(t *testing.T) {
	product := packagedDocuments(t, "deploy/packages/nfpm.yaml")
	laboratory := packagedDocuments(t, "deploy/packages/nfpm-lab.yaml")
	maps.Copy(laboratory, product) // that package needs the other
	found := 0
	for _, name := range files(t, ".go", ".txt") {
		if isTest(name) || !strings.HasPrefix(name, "internal/") {
			continue
		}
		packaged := product
		if strings.HasPrefix(name, "internal/lab/") {
			packaged = laboratory
		}
		installed, sources := slices.Collect(maps.Keys(packaged)), slices.Collect(maps.Values(packaged))
		for _, named := range namedFile.FindAllStringSubmatch(string(read(t, name)), -1) {
			found++
			document := strings.HasPrefix(named[1], "docs/") && slices.Contains(sources, named[1])
			example := strings.HasPrefix(named[1], "examples/") && slices.ContainsFunc(installed, func(file string) bool {
				return file == named[1] || strings.HasPrefix(file, named[1]+"/")
			})
			if !document && !example {
				t.Errorf("%s names %s, which its package does not have among its documents", name, named[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d files are named", found)
	}
}
