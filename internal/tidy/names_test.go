// Names and messages use the field's words, as documents do (docs_test.go).
package tidy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// homeMadeNames are words that no name in the product's code has, one of its parts in camelCase or between underscores.
var homeMadeNames = map[string]string{
	"told": "sent, reported, received", "tell": "report, send, publish", "came": "arrived, ingress", "keeper": "manager, or what it does",
	"sick": "down, unhealthy", "stray": "orphan", "straight": "direct", "lightest": "least loaded", "hurry": "soon, or a time", "anew": "again",
	"stranger": "foreign", "strangers": "foreign", "brain": "engine", "mend": "repair", "mended": "repaired", "unknowingly": "without its knowledge",
}

// homeMadePhrases are the same for several parts of a name, in lower case.
var homeMadePhrases = regexp.MustCompile(`^(look_at|any_way|usual_way|take_off|hand_on|make_way|would_circle)`)

// otherWords are files whose names are still to be changed, by prefix, and names that users know.
var (
	otherWords = []string{"internal/lab/"}
	usersKnow  = map[string]bool{"INGRESS_DROPPED_STRAY": true} // a counter
)

var namePart = regexp.MustCompile(`[A-Z]+(?:[0-9]+|$)|[A-Z]*[a-z0-9]+|[A-Z]+`)

func nameParts(name string) (parts []string) {
	for _, part := range namePart.FindAllString(name, -1) {
		parts = append(parts, strings.ToLower(part))
	}
	return parts
}

// homeMadeName says what is wrong with a name; empty: nothing.
func homeMadeName(name string) string {
	parts := nameParts(name)
	for _, part := range parts {
		if better, forbidden := homeMadeNames[part]; forbidden {
			return name + ": " + part + ": say " + better
		}
	}
	if found := homeMadePhrases.FindString(strings.Join(parts, "_")); found != "" {
		return name + ": " + found + ": use the field's word"
	}
	return ""
}

func isOther(name string) bool {
	for _, prefix := range otherWords {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func TestNamesInCodeAreWordsOfTheField(t *testing.T) {
	checked, set := 0, token.NewFileSet()
	for _, name := range files(t, ".go") {
		if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go") || strings.HasPrefix(name, "internal/tidy/") || isOther(name) {
			continue
		}
		tree, err := parser.ParseFile(set, name, read(t, name), parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				checked++
				if problem := homeMadeName(n.Name); problem != "" {
					t.Errorf("%s: %s", set.Position(n.Pos()), problem)
				}
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				if n.Kind != token.STRING || err != nil || !strings.Contains(text, " ") {
					break // names of keys and metrics are users'
				}
				for _, word := range homeMadeWords(text) {
					t.Errorf("%s: %q: %s", set.Position(n.Pos()), text, word)
				}
			}
			return true
		})
	}
	comment := regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"[^"\n]*"`)
	for _, name := range files(t, ".c", ".h") {
		if isOther(name) {
			continue
		}
		for _, word := range regexp.MustCompile(`[A-Za-z_]\w*`).FindAllString(comment.ReplaceAllString(string(read(t, name)), " "), -1) {
			checked++
			if problem := homeMadeName(word); problem != "" && !usersKnow[word] {
				t.Errorf("%s: %s", name, problem)
			}
		}
	}
	if checked < 100000 {
		t.Errorf("checked only %d names", checked)
	}
}

func TestHomeMadeNamesAreFound(t *testing.T) {
	for name, wrong := range map[string]bool{
		"told": true, "toldLoad": true, "ReplicaTold": true, "tellRing": true, "ticketKeeper": true, "lookAtTickets": true, "vip_told": true,
		"any_way": true, "camera": false, "stray_age_ms": true, "StrayBytes": true, "tellurium": false, "lookup": false, "slow_path": false,
		"anyWay": true, "keepalive": false, "IPv6": false, "MADE_WAY": false, "SendKept": false,
	} {
		if problem := homeMadeName(name); (problem != "") != wrong {
			t.Errorf("%s: %q", name, problem)
		}
	}
}
