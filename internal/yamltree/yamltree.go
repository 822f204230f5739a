// Package yamltree reads strict YAML: it walks a file's tree, knows the line of every key, and collects objections instead of stopping at the
// first. Configuration files and scenarios of the simulator are read by it. No schema here has a use for anchors, tags, values of several lines or
// several documents, and so they are refused; values are texts until their reader makes something of them.
package yamltree

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/model"
)

// maxNesting bounds mappings and lists inside each other: no schema needs as many.
const maxNesting = 16

// Objection is one thing that is wrong with a file.
type Objection struct {
	Line    int    // counted from 1
	Path    string // of the key: "services[2].vip"
	Problem string
	Remedy  string
}

// Rules are what files of a kind must keep to.
type Rules struct {
	Bytes    int    // that a file has at most
	TooLarge string // the remedy for one that is larger
	Empty    string // the remedy for one without a document
}

// Reader reads one file. Start from New. It is not safe for concurrent use.
type Reader struct {
	rules      Rules
	lines      map[string]int
	objections []Objection
}

// New returns a reader for a file of the kind.
func New(rules Rules) *Reader { return &Reader{rules: rules, lines: map[string]int{"": 1}} }

// Node is a mapping, a list or a single value of a file.
type Node = *yaml.Node

// Value reads one node, found at a path.
type Value func(node Node, path string)

// Fail objects to what is on a line.
func (r *Reader) Fail(line int, path, remedy, problem string, args ...any) {
	r.objections = append(r.objections, Objection{Line: line, Path: path, Problem: fmt.Sprintf(problem, args...), Remedy: remedy})
}

// FailAt objects to what is at a path, or to the nearest thing around it when it is not in the file.
func (r *Reader) FailAt(path, remedy, problem string, args ...any) {
	r.Fail(r.LineOf(path), path, remedy, problem, args...)
}

// Failed reports how many objections there are.
func (r *Reader) Failed() int { return len(r.objections) }

// Objections returns all in the order of the lines.
func (r *Reader) Objections() []Objection {
	slices.SortStableFunc(r.objections, func(a, b Objection) int { return a.Line - b.Line })
	return r.objections
}

// Has reports whether the file says something at a path.
func (r *Reader) Has(path string) bool { return r.lines[path] != 0 }

// LineOf returns the line of a path, or of the nearest thing around it that is in the file.
func (r *Reader) LineOf(path string) int {
	for {
		if line, ok := r.lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
}

// Parse returns the root of the only document, or nil after an objection.
func (r *Reader) Parse(text []byte) (root Node) {
	if len(text) > r.rules.Bytes {
		r.Fail(1, "", r.rules.TooLarge, "the file is larger than %d bytes", r.rules.Bytes)
		return nil
	}
	// The YAML library has panicked on odd input before; a bad file must not take the process down.
	defer func() {
		if problem := recover(); problem != nil {
			r.Fail(1, "", "write plainer YAML", "the YAML parser gave up: %v", problem)
			root = nil
		}
	}()
	if !r.checkText(text) {
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if err == io.EOF {
			break
		}
		if err != nil {
			r.syntaxError(text, err)
			return nil
		}
		body := document.Content[0]
		if body.Kind == yaml.ScalarNode && body.Value == "" && body.Style == 0 {
			continue // nothing between two marks of documents
		}
		if root != nil {
			r.Fail(body.Line, "", "keep one of them", "the file has more than one document")
			return nil
		}
		root = body
	}
	if root == nil {
		r.Fail(1, "", r.rules.Empty, "the file is empty")
		return nil
	}
	if !r.check(root, 0) {
		return nil
	}
	return root
}

// check refuses what no schema has a use for.
func (r *Reader) check(node Node, depth int) bool {
	unsupported := ""
	switch {
	case node.Kind == yaml.AliasNode:
		unsupported = "*"
	case node.Anchor != "":
		unsupported = "&"
	case node.Style&yaml.TaggedStyle != 0:
		unsupported = "!"
	case node.Style&yaml.LiteralStyle != 0:
		unsupported = "|"
	case node.Style&yaml.FoldedStyle != 0:
		unsupported = ">"
	case node.Tag == "!!merge":
		unsupported = "<<"
	}
	if unsupported != "" {
		r.Fail(node.Line, "", "write values out in full, on one line", "%q is not supported here", unsupported)
		return false
	}
	if depth > maxNesting {
		r.Fail(node.Line, "", "flatten it", "nested too deeply")
		return false
	}
	for i, child := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 && child.Kind != yaml.ScalarNode && child.Kind != yaml.AliasNode {
			r.Fail(child.Line, "", "write `key: value` lines", "%s instead of a key", kind(child))
			return false
		}
		if !r.check(child, depth+1) {
			return false
		}
	}
	return true
}

// printable quotes a key that is not plain text: whoever reads an objection to it reads one line, and so does a terminal.
func printable(key string) string {
	if strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(key)
	}
	return key
}

// atLine is how the YAML library begins most errors. The line is where the list or mapping begins that it was reading.
var atLine = regexp.MustCompile(`^(yaml: )?(line \d+: )?`)

// maxSought is the size, in bytes, of the largest file in which the line of a syntax error is sought.
const maxSought = 1 << 20

// syntaxError objects to the first line up to which the file has the error.
func (r *Reader) syntaxError(text []byte, err error) {
	problemOf := func(err error) string { return atLine.ReplaceAllString(err.Error(), "") }
	lines, problem, line := bytes.SplitAfter(text, []byte("\n")), problemOf(err), 1
	if len(text) <= maxSought {
		line += sort.Search(len(lines)-1, func(i int) bool {
			var document yaml.Node
			err := yaml.Unmarshal(bytes.Join(lines[:i+1], nil), &document)
			return err != nil && problemOf(err) == problem
		})
	}
	r.Fail(line, "", "see https://yaml.org", "not YAML: %s", problem)
}

// checkText refuses bytes that are no text, and names their line.
func (r *Reader) checkText(text []byte) bool {
	for i, line := range bytes.Split(text, []byte("\n")) {
		control := func(c rune) bool { return unicode.IsControl(c) && c != '\t' && c != '\r' }
		if !utf8.Valid(line) || bytes.ContainsFunc(line, control) {
			r.Fail(i+1, "", "write text in UTF-8", "bytes that are no text")
			return false
		}
	}
	return true
}

// Mapping reads a mapping whose keys are all in fields; a nil field is an error of this program.
func (r *Reader) Mapping(node Node, path string, fields map[string]Value) {
	r.Entries(node, path, func(key string, line int, child Node, childPath string) {
		read, ok := fields[key]
		if !ok {
			names := slices.Sorted(maps.Keys(fields))
			remedy := "use one of " + strings.Join(names, ", ")
			if meant := near(key, names); len(meant) > 0 {
				remedy = "did you mean " + strings.Join(meant, " or ") + "? Else " + remedy
			}
			r.Fail(line, childPath, remedy, "unknown key")
			return
		}
		read(child, childPath)
	})
}

// Entries calls visit for every entry of a mapping, once per key.
func (r *Reader) Entries(node Node, path string, visit func(key string, line int, child Node, childPath string)) {
	if node.Kind != yaml.MappingNode {
		r.Fail(node.Line, path, "write `key: value` lines", "%s instead of a mapping", kind(node))
		return
	}
	for entry := range slices.Chunk(node.Content, 2) {
		key := entry[0]
		childPath := strings.TrimPrefix(path+"."+printable(key.Value), ".")
		if first, ok := r.lines[childPath]; ok {
			r.Fail(key.Line, childPath, "remove one of them", "repeated, first on line %d", first)
			continue
		}
		r.lines[childPath] = key.Line
		visit(key.Value, key.Line, entry[1], childPath)
	}
}

// Sequence calls visit for every element of a sequence, once: the elements are given up.
func (r *Reader) Sequence(node Node, path string, visit Value) {
	if node.Kind != yaml.SequenceNode {
		r.Fail(node.Line, path, "write a list: [a, b] or lines that begin with `-`", "%s instead of a list", kind(node))
		return
	}
	for i, child := range node.Content {
		childPath := fmt.Sprintf("%s[%d]", path, i)
		r.lines[childPath] = child.Line
		visit(child, childPath)
		node.Content[i] = nil // a long list is not kept beside what was read from it
	}
}

// Scalar returns the text of a plain or quoted value as it was written: 010 is "010", whatever YAML makes of it.
func (r *Reader) Scalar(node Node, path string) (text string, ok bool) {
	if node.Kind == yaml.ScalarNode && node.ShortTag() != "!!null" {
		return node.Value, true
	}
	r.Fail(node.Line, path, "write a single value", "%s instead of a value", kind(node))
	return "", false
}

// Value reads a single value by set, whose *model.Invalid is objected.
func (r *Reader) Value(set func(text string) error) Value {
	return func(node Node, path string) {
		text, ok := r.Scalar(node, path)
		if !ok {
			return
		}
		var invalid *model.Invalid
		if err := set(text); errors.As(err, &invalid) {
			r.Fail(node.Line, path, invalid.Remedy, "%s", invalid.Problem)
		}
	}
}

func kind(node Node) string {
	switch {
	case node.Kind == yaml.MappingNode:
		return "a mapping"
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case node.ShortTag() == "!!null":
		return "nothing"
	default:
		return "a single value"
	}
}
