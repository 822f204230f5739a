// Package promises reads the guarantees that tests state in comments before them: "// Promise: ...", one sentence, and
// where further tests show it too, "// Also held by TestA and TestB." after it.
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

// Promise is a guarantee and the tests that hold it.
type Promise struct {
	Sentence string
	File     string // of the first test, relative to the repository
	Tests    []string
}

var (
	testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	twoOf    = regexp.MustCompile(`[^.]\. `) // the end of a sentence in the midst of the text
)

// Of returns the promises in a test file.
func Of(file string, source []byte) ([]Promise, error) {
	var found []Promise
	err := before(file, source, "Promise:", "promises", func(function, text string) error {
		sentence, further, _ := strings.Cut(text, " Also held by ")
		promise := Promise{sentence, file, append([]string{function}, testName.FindAllString(further, -1)...)}
		if problem := promise.malformed(); problem != "" {
			return fmt.Errorf("the promise %q %s", sentence, problem)
		}
		found = append(found, promise)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// before visits the paragraphs of comments before functions that begin with a word: what, in the plural. It is an error if one stands elsewhere.
func before(file string, source []byte, word, what string, visit func(function, text string) error) error {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	attached := 0
	for _, declaration := range parsed.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Doc == nil {
			continue
		}
		for _, paragraph := range paragraphs(function.Doc) {
			text, ok := strings.CutPrefix(paragraph, word+" ")
			if !ok {
				continue
			}
			if err := visit(function.Name.Name, text); err != nil {
				return fmt.Errorf("%s: %s: %w", file, function.Name.Name, err)
			}
			attached++
		}
	}
	if all := strings.Count("\n"+strings.ReplaceAll(string(source), "\t", ""), "\n// "+word); all != attached {
		return fmt.Errorf("%s: %d of %d %s do not stand before a test", file, all-attached, all, what)
	}
	return nil
}

// paragraphs splits a comment at empty lines, and before each promise and list of reports.
func paragraphs(comment *ast.CommentGroup) []string {
	var found []string
	again := true
	for _, line := range comment.List {
		text := strings.TrimSpace(strings.TrimPrefix(line.Text, "//"))
		switch {
		case text == "":
			again = true
		case again || strings.HasPrefix(text, "Promise:") || strings.HasPrefix(text, "Public:"):
			found, again = append(found, text), false
		default:
			found[len(found)-1] += " " + text
		}
	}
	return found
}

func (p Promise) malformed() string {
	switch first := p.Sentence[:min(1, len(p.Sentence))]; {
	case !testName.MatchString(p.Tests[0]):
		return "does not stand before a test"
	case !strings.HasSuffix(p.Sentence, "."):
		return "does not end in a full stop"
	case twoOf.MatchString(p.Sentence):
		return "is more than one sentence"
	case strings.ToUpper(first) != first:
		return "does not begin with a capital letter"
	}
	return ""
}

// String is the promise as a developer reads it.
func (p Promise) String() string {
	return fmt.Sprintf("%s\n    go test ./%s -run '^%s$'\n", p.Sentence, path.Dir(p.File), p.Tests[0]) + p.further()
}

func (p Promise) further() string {
	if len(p.Tests) == 1 {
		return ""
	}
	return "    also: " + strings.Join(p.Tests[1:], ", ") + "\n"
}
