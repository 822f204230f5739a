package tidy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	testName     = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]\w*$`)
	testDeclared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	scenarioRow  = regexp.MustCompile(`(?m)^\t\tName: "([a-z0-9-]+)", Deadline: `)
	paperRow     = regexp.MustCompile(`^\| [A-Z]\d+ \| [^|]+ \| ([^|]+) \|`) // the column of tests
	scenarioSpan = regexp.MustCompile("scenarios? `([a-z0-9-]+)`(?:(?: and|,) `([a-z0-9-]+)`)?")
)

func markdown(t *testing.T) map[string]string {
	texts := map[string]string{}
	for _, name := range files(t, ".md") {
		texts[name] = string(read(t, name))
	}
	return texts
}

func TestPathsInTheDocumentsExist(t *testing.T) {
	for name, text := range markdown(t) {
		for _, problem := range missingPaths(strings.ReplaceAll(text, "/NAME.h`", "`")) { // NAME is the reader's
			t.Errorf("%s: %s", name, problem)
		}
	}
}

// A guarantee is worth what its test is worth: those that documents name must be there.
func TestTestsAndScenariosInTheDocumentsExist(t *testing.T) {
	declared := map[string]bool{}
	for _, name := range files(t, "_test.go") {
		for _, function := range testDeclared.FindAllStringSubmatch(string(read(t, name)), -1) {
			declared[function[1]] = true
			declared[name+" "+function[1]] = true
		}
	}
	scenarios := map[string]bool{}
	for _, name := range files(t, ".go") {
		if strings.HasPrefix(name, "internal/lab/scenario/") {
			for _, row := range scenarioRow.FindAllStringSubmatch(string(read(t, name)), -1) {
				scenarios[row[1]] = true
			}
		}
	}
	if len(declared) == 0 || len(scenarios) == 0 {
		t.Fatal("found no tests or no scenarios")
	}
	for name, text := range markdown(t) {
		for i, line := range strings.Split(text, "\n") {
			file := ""
			for _, span := range codeSpan.FindAllStringSubmatch(line, -1) {
				if strings.HasSuffix(span[1], ".go") {
					file = span[1]
				}
				if wanted := strings.TrimSpace(file + " " + span[1]); testName.MatchString(span[1]) && !declared[wanted] {
					t.Errorf("%s:%d: there is no test %s", name, i+1, wanted)
				}
			}
			if row := paperRow.FindStringSubmatch(line); row != nil && name == "docs/design/papers.md" {
				for _, span := range codeSpan.FindAllStringSubmatch(row[1], -1) {
					if !scenarios[span[1]] && !testName.MatchString(span[1]) && !strings.HasPrefix(span[1], "ballast-lab ") {
						t.Errorf("%s:%d: %s is neither a scenario nor a test nor a command", name, i+1, span[1])
					}
				}
			}
			for _, found := range scenarioSpan.FindAllStringSubmatch(line, -1) {
				for _, scenario := range found[1:] {
					if scenario != "" && !scenarios[scenario] {
						t.Errorf("%s:%d: there is no scenario %s", name, i+1, scenario)
					}
				}
			}
		}
	}
}

var markdownLink = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

func TestLinksBetweenDocumentsLeadSomewhere(t *testing.T) {
	for name, text := range markdown(t) {
		for _, link := range markdownLink.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(name), link[1])); err != nil {
				t.Errorf("%s: link to %s, which does not exist", name, link[1])
			}
		}
	}
}

// namedHeading finds a part of a document that a text names, by its heading or its first words in bold.
var namedHeading = []*regexp.Regexp{
	regexp.MustCompile("(?P<document>docs/[a-z]+/[a-z-]+\\.md)`?,? \\(?\\\\?\"(?P<heading>[A-Z][^\"\\\\]+)"),
	regexp.MustCompile("\"(?P<heading>[A-Z][^\"\\\\]+)\\\\?\" in `?(?P<document>docs/[a-z]+/[a-z-]+\\.md)"),
}

func TestHeadingsThatAreNamedExist(t *testing.T) {
	joined := regexp.MustCompile(`\s+(// |\* )?`)
	found := 0
	for _, name := range files(t, ".md", ".go", ".txt", ".h", ".c") {
		text := joined.ReplaceAllString(string(read(t, name)), " ")
		for _, pattern := range namedHeading {
			for _, match := range pattern.FindAllStringSubmatch(text, -1) {
				document, heading := match[pattern.SubexpIndex("document")], strings.TrimSuffix(match[pattern.SubexpIndex("heading")], ".")
				if !strings.Contains(joined.ReplaceAllString(string(read(t, document)), " "), heading) {
					t.Errorf("%s: %s has no part %q", name, document, heading)
				}
				found++
			}
		}
	}
	if found < 20 {
		t.Errorf("found only %d", found)
	}
}

const maxColumns = 100 // of text in a document

// text returns the lines of a document, with those of code left empty.
func text(document string) []string {
	lines, code := strings.Split(document, "\n"), false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if code = code != fence; code || fence {
			lines[i] = ""
		}
	}
	return lines
}

func TestDocumentsAreNarrow(t *testing.T) {
	for name, document := range markdown(t) {
		var long []string
		for i, line := range text(document) {
			words := strings.Fields(codeSpan.ReplaceAllString(line, "`")) // a span or link is not broken
			if utf8.RuneCountInString(line) > maxColumns && len(words) > 2 && !strings.HasPrefix(line, "|") {
				long = append(long, fmt.Sprintf("%s:%d: %d columns, at most %d", name, i+1, utf8.RuneCountInString(line), maxColumns))
			}
		}
		if len(long) > 0 {
			t.Errorf("%s", strings.Join(long, "\n"))
		}
	}
}

// homeMade are words that the field has others for.
var homeMade = map[string]string{
	"brain": "the engine", "sick": "unhealthy", "told": "sent, or knows", "straight": "direct", "stranded": "ahead of all controllers",
	"tell": "send, report", "tells": "sends, reports", "said": "sent, reported", "heard": "received",
	"somebody": "the person or program", "anybody": "everybody", "speaks": "uses, sends", "lightest": "least loaded", "keeper": "manager",
	"stray": "orphan", "unknowingly": "without its knowledge", "beforehand": "before",
	"stranger": "foreign", "strangers": "foreign", "anew": "again", "mend": "repair", "mended": "repaired",
}

func TestDocumentsAndHelpSpeakTheWordsOfTheField(t *testing.T) {
	texts := markdown(t)
	for _, name := range files(t, ".txt") {
		if strings.Contains(name, "/cli/help/") {
			texts[name] = string(read(t, name))
		}
	}
	for name, document := range texts {
		for i, line := range text(document) {
			for _, word := range homeMadeWords(codeSpan.ReplaceAllString(line, "`")) {
				t.Errorf("%s:%d: %s", name, i+1, word)
			}
		}
	}
}

var word = regexp.MustCompile(`\w+`)

// homeMadeWords says which words of a text are homeMade.
func homeMadeWords(text string) (problems []string) {
	for _, one := range word.FindAllString(text, -1) {
		if better, forbidden := homeMade[strings.ToLower(one)]; forbidden {
			problems = append(problems, one+": say "+better)
		}
	}
	return problems
}

// linksTo reports whether a document has a link to a file, relative to its own folder.
func linksTo(document, text, name string) bool {
	return slices.ContainsFunc(markdownLink.FindAllStringSubmatch(text, -1), func(link []string) bool {
		return filepath.Join(filepath.Dir(document), link[1]) == name
	})
}

func TestEveryDocumentIsReachable(t *testing.T) {
	documents := markdown(t)
	for _, name := range files(t) {
		if !strings.HasPrefix(name, "docs/") {
			continue
		}
		named := false
		for other, document := range documents {
			named = named || other != name && (strings.Contains(document, name) || linksTo(other, document, name))
		}
		if !named {
			t.Errorf("%s: no other document leads to it", name)
		}
	}
}
