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

const documentation = "/usr/share/doc/ballast/"

var (
	packagedRow = regexp.MustCompile(`(?m)src: "?([^",}]+)"?, dst: ([^,}]+)`)
	namedFile   = regexp.MustCompile(`\b(docs/[a-z0-9-]+\.md|examples/[a-z][a-z/-]*(?:\.yaml)?)`)
)

// packagedDocuments are the files of the repository that packages install below /usr/share/doc/ballast, by their names there.
func packagedDocuments(t *testing.T) map[string]string {
	all := files(t)
	found := map[string]string{}
	for _, row := range packagedRow.FindAllStringSubmatch(string(read(t, "deploy/packages/nfpm.yaml")), -1) {
		folder, below := strings.CutPrefix(row[2], documentation)
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
	packaged := packagedDocuments(t)
	installed := slices.Collect(maps.Keys(packaged))
	sources := slices.Collect(maps.Values(packaged))
	found := 0
	for _, name := range files(t, ".go", ".txt") {
		if isTest(name) || !strings.HasPrefix(name, "internal/") {
			continue
		}
		for _, named := range namedFile.FindAllStringSubmatch(string(read(t, name)), -1) {
			found++
			document := strings.HasPrefix(named[1], "docs/") && slices.Contains(sources, named[1])
			example := strings.HasPrefix(named[1], "examples/") && slices.ContainsFunc(installed, func(file string) bool {
				return file == named[1] || strings.HasPrefix(file, named[1]+"/")
			})
			if !document && !example {
				t.Errorf("%s names %s, which packages do not have in %s", name, named[1], documentation)
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d files are named", found)
	}
}
