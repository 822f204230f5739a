package promises

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"strings"
)

// Report is a situation that users of another product have reported in public, and the test that shows it here, without the fault.
type Report struct {
	Issue string // owner/repository#number
	What  string // happened there
	File  string // of the test, relative to the repository
	Test  string
}

var (
	reported  = regexp.MustCompile(`^([\w.-]+/[\w.-]+#\d+) \(([^()]+)\)$`)
	separator = regexp.MustCompile(`\), `)
)

// Reports returns those that tests name in comments before them: "// Public: owner/repository#number (what happened there), ...".
func Reports(file string, source []byte) ([]Report, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	attached := 0
	var found []Report
	for _, declaration := range parsed.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Doc == nil {
			continue
		}
		for _, paragraph := range paragraphs(function.Doc) {
			list, ok := strings.CutPrefix(paragraph, "Public: ")
			if !ok {
				continue
			}
			attached++
			list, ended := strings.CutSuffix(list, ".")
			if !ended || !testName.MatchString(function.Name.Name) {
				return nil, fmt.Errorf("%s: %s: a list of reports stands before a test and ends in a full stop", file, function.Name.Name)
			}
			for _, one := range strings.Split(separator.ReplaceAllString(list, ")\n"), "\n") {
				parts := reported.FindStringSubmatch(one)
				if parts == nil {
					return nil, fmt.Errorf("%s: %s: %q is not OWNER/REPOSITORY#NUMBER (what happened there)", file, function.Name.Name, one)
				}
				found = append(found, Report{parts[1], parts[2], file, function.Name.Name})
			}
		}
	}
	if all := strings.Count("\n"+strings.ReplaceAll(string(source), "\t", ""), "\n// Public: "); all != attached {
		return nil, fmt.Errorf("%s: %d of %d lists of reports do not stand before a test", file, all-attached, all)
	}
	return found, nil
}

// String is a row of a table: number, what happened there, test here.
func (r Report) String() string {
	return fmt.Sprintf("%-36s %s\n    go test ./%s -run '^%s$'", r.Issue, r.What, path.Dir(r.File), r.Test)
}
