// How much there is to read: totals of words that all documents keep together.
package tidy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// The totals: of the documents that an operator meets, and of all.
const (
	maxWordsOfOperators = 18000
	maxWordsOfAll       = 35000
)

// recordedWords are the words of each document when the totals were set.
var recordedWords = map[string]int{
	"CHANGELOG.md":                      345,
	"CONTRIBUTING.md":                   851,
	"README.md":                         926,
	"SECURITY.md":                       164,
	"bpf/README.md":                     1505,
	"docs/design/architecture.md":       1365,
	"docs/design/connection.md":         3820,
	"docs/design/control.md":            1920,
	"docs/design/failure-model.md":      1817,
	"docs/design/glossary.md":           575,
	"docs/design/papers.md":             1818,
	"docs/design/performance.md":        973,
	"docs/design/simulator.md":          709,
	"docs/features/connection-table.md": 782,
	"docs/features/mptcp.md":            432,
	"docs/features/policies.md":         1310,
	"docs/features/quic.md":             840,
	"docs/features/replicas.md":         1226,
	"docs/features/sessions.md":         1020,
	"docs/run/bgp.md":                   983,
	"docs/run/configure.md":             3112,
	"docs/run/console.md":               398,
	"docs/run/install.md":               1369,
	"docs/run/monitor.md":               663,
	"docs/run/operate.md":               2308,
	"docs/run/troubleshoot.md":          1002,
	"docs/start/first-fleet.md":         870,
	"docs/start/quickstart.md":          560,
	"examples/session/README.md":        55,
}

// forOperators reports whether a document is one that an operator meets.
func forOperators(name string) bool {
	return slices.ContainsFunc([]string{"docs/start/", "docs/run/", "docs/features/"}, func(folder string) bool {
		return strings.HasPrefix(name, folder)
	})
}

// grown lists the documents that have more words than recorded, the one that grew most first. Nothing, while the total is kept.
func grown(words, recorded map[string]int, total int) (list []string) {
	sum := 0
	for _, n := range words {
		sum += n
	}
	if sum <= total {
		return nil
	}
	growth := func(name string) int { return words[name] - recorded[name] }
	for _, name := range slices.SortedFunc(maps.Keys(words), func(a, b string) int {
		return cmp.Or(growth(b)-growth(a), strings.Compare(a, b))
	}) {
		if growth(name) > 0 {
			list = append(list, fmt.Sprintf("%s: %d words, %d more than recorded", name, words[name], growth(name)))
		}
	}
	return append([]string{fmt.Sprintf("%d words, at most %d: remove a section, or move it to --help", sum, total)}, list...)
}

func TestDocumentsKeepTheirTotalsOfWords(t *testing.T) {
	all, operators := map[string]int{}, map[string]int{}
	for name, text := range markdown(t) {
		all[name] = len(strings.Fields(text))
		if forOperators(name) {
			operators[name] = all[name]
		}
	}
	if problems := grown(operators, recordedWords, maxWordsOfOperators); problems != nil {
		t.Errorf("docs/start, docs/run and docs/features: %s", strings.Join(problems, "\n"))
	}
	if problems := grown(all, recordedWords, maxWordsOfAll); problems != nil {
		t.Errorf("all documents: %s", strings.Join(problems, "\n"))
	}
}

func TestADocumentThatGrowsOverTheTotalIsNamed(t *testing.T) {
	recorded := map[string]int{"a.md": 60, "b.md": 30}
	if problems := grown(map[string]int{"a.md": 50, "b.md": 50}, recorded, 100); problems != nil {
		t.Errorf("within the total: %q", problems)
	}
	problems := grown(map[string]int{"a.md": 55, "b.md": 40, "c.md": 6}, recorded, 100)
	if len(problems) != 3 || !strings.HasPrefix(problems[1], "b.md: 40 words, 10 more") || !strings.HasPrefix(problems[2], "c.md: 6 words, 6 more") {
		t.Errorf("have %q", problems)
	}
}
