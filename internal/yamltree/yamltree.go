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
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/model"
)

// maxNesting bounds brackets and dashes that are open at once: no schema needs as many.
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
	text       []byte
	root       *yaml.Node // without the insides of lists' elements that are read
	whole      bool       // root has them: it was parsed again
	wholeUpTo  int        // bytes of text
	unread     map[*yaml.Node][]piece
	broken     bool // a piece is none
	objections []Objection
}

// New returns a reader for a file of the kind.
func New(rules Rules) *Reader { return &Reader{rules: rules, wholeUpTo: wholeUpTo} }

// Value reads one node, found at a path.
type Value func(node *yaml.Node, path string)

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

// Has reports whether the file has something at a path.
func (r *Reader) Has(path string) bool {
	_, rest := r.find(path)
	return rest == ""
}

// LineOf returns the line of a path, or of the nearest thing around it that is in the file.
func (r *Reader) LineOf(path string) int {
	line, _ := r.find(path)
	return line
}

// find follows a path from the root, as far as the file has it. What is within elements of lists that are read is parsed again, once.
func (r *Reader) find(path string) (line int, rest string) {
	line, rest = 1, path
	for node := r.root; node != nil && rest != ""; {
		key, child, left := step(node, rest)
		if key != nil {
			line, rest = key.Line, left
		}
		node = child
	}
	if rest != "" && !r.whole && strings.Contains(path, "[") {
		r.whole = true
		r.root, _ = parse(r.text) // as it was before
		return r.find(path)
	}
	return line, rest
}

// step goes to the child that a path begins with: key is what names it, itself in a list. Both are nil if there is none.
func step(node *yaml.Node, path string) (key, child *yaml.Node, rest string) {
	switch node.Kind {
	case yaml.SequenceNode:
		number, rest, ok := strings.Cut(strings.TrimPrefix(path, "["), "]")
		i, err := strconv.Atoi(number)
		if ok && err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i], rest
		}
	case yaml.MappingNode:
		path = strings.TrimPrefix(path, ".")
		for i := 0; i+1 < len(node.Content); i += 2 {
			rest, ok := strings.CutPrefix(path, printable(node.Content[i].Value))
			if ok && (rest == "" || strings.ContainsRune(".[", rune(rest[0]))) {
				return node.Content[i], node.Content[i+1], rest
			}
		}
	}
	return nil, nil, path
}

// Read calls read with the root of the only document, unless there is an objection. The text must not change any more. What a call has kept is void if there is
// another, or an objection: of large files the elements of lists are parsed when they are read, and a mistake in one shows only then.
func (r *Reader) Read(text []byte, read func(root *yaml.Node)) {
	if len(text) > r.wholeUpTo && len(text) <= r.rules.Bytes {
		if root, unread := r.parsePieces(text); root != nil {
			r.text, r.root, r.unread = text, root, unread
			read(root)
			if r.readRest(); !r.broken {
				return
			}
			r.text, r.root, r.whole, r.objections = nil, nil, false, nil
		}
	}
	if root := r.Parse(text); root != nil {
		read(root)
	}
}

// Parse returns the root of the only document, or nil after an objection. The text must not change any more.
func (r *Reader) Parse(text []byte) *yaml.Node {
	if len(text) > r.rules.Bytes {
		r.Fail(1, "", r.rules.TooLarge, "the file is larger than %d bytes", r.rules.Bytes)
		return nil
	}
	root, err := parse(text)
	switch {
	case err != nil:
		r.syntaxError(err, text)
	case root == nil:
		r.Fail(1, "", r.rules.Empty, "the file is empty")
	case root.Kind == yaml.DocumentNode:
		r.Fail(root.Line, "", "keep one of them", "the file has several documents")
	case r.check(root, 0):
		r.text, r.root = text, root
		return root
	}
	return nil
}

// parse returns the root of the only document, nil if there is none, or the second document.
func parse(text []byte) (root *yaml.Node, err error) {
	// YAML libraries have panicked on odd input before; a bad file must not take the process down.
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("the parser gave up: %v", problem)
		}
	}()
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var document yaml.Node
		if err := documents.Decode(&document); err == io.EOF {
			return root, nil
		} else if err != nil {
			return nil, err
		}
		switch body := document.Content[0]; {
		case body.Kind == yaml.ScalarNode && body.Value == "" && body.Style == 0:
			// nothing between two dashed lines
		case root != nil:
			document.Line = body.Line
			return &document, nil
		default:
			root = body
		}
	}
}

// check refuses what no schema has a use for.
func (r *Reader) check(node *yaml.Node, depth int) bool {
	switch {
	case node.Kind == yaml.AliasNode:
		return r.unsupported(node, "*"+node.Value)
	case node.Anchor != "":
		return r.unsupported(node, "&"+node.Anchor)
	case node.Style&yaml.TaggedStyle != 0:
		return r.unsupported(node, node.Tag)
	case node.Tag == "!!merge":
		return r.unsupported(node, node.Value)
	case node.Style&yaml.LiteralStyle != 0:
		return r.unsupported(node, "|")
	case node.Style&yaml.FoldedStyle != 0:
		return r.unsupported(node, ">")
	case depth > maxNesting:
		r.Fail(node.Line, "", "flatten it", "nested too deeply")
		return false
	}
	for _, child := range node.Content {
		if !r.check(child, depth+1) {
			return false
		}
	}
	return true
}

func (r *Reader) unsupported(node *yaml.Node, what string) bool {
	r.Fail(node.Line, "", "write values out in full, on one line", "%q is not supported here", what)
	return false
}

// printable quotes a key that is not plain text: whoever reads an objection to it reads one line, and so does a terminal.
func printable(key string) string {
	if strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(key)
	}
	return key
}

var (
	place = regexp.MustCompile(`^yaml: (?:line (\d+): )?`) // how the library begins its messages
	alias = regexp.MustCompile(`^yaml: unknown anchor '(.*)' referenced$`)
)

func (r *Reader) syntaxError(err error, text []byte) {
	problem, line := err.Error(), 1
	if found := alias.FindStringSubmatch(problem); found != nil {
		before, _, _ := bytes.Cut(text, []byte("*"+found[1]))
		r.unsupported(&yaml.Node{Line: 1 + bytes.Count(before, []byte("\n"))}, "*"+found[1])
		return
	}
	found := place.FindStringSubmatch(problem)
	if found != nil {
		problem = problem[len(found[0]):]
	}
	if found != nil && found[1] != "" {
		line, _ = strconv.Atoi(found[1])
	}
	r.Fail(line, "", "see https://yaml.org", "not YAML: %s", problem)
}

// Mapping reads a mapping whose keys are all in fields; a nil field is an error of this program.
func (r *Reader) Mapping(node *yaml.Node, path string, fields map[string]Value) {
	r.Entries(node, path, func(key string, line int, child *yaml.Node, childPath string) {
		read, ok := fields[key]
		if !ok {
			names := slices.Sorted(maps.Keys(fields))
			remedy := "use one of " + strings.Join(names, ", ")
			if meant := Near(key, names); len(meant) > 0 {
				remedy = "did you mean " + strings.Join(meant, " or ") + "? Else " + remedy
			}
			r.Fail(line, childPath, remedy, "unknown key")
			return
		}
		read(child, childPath)
	})
}

// Entries calls visit for every entry of a mapping, once per key.
func (r *Reader) Entries(node *yaml.Node, path string, visit func(key string, line int, child *yaml.Node, childPath string)) {
	if node.Kind != yaml.MappingNode {
		r.Fail(node.Line, path, "write `key: value` lines", "%s instead of a mapping", kind(node))
		return
	}
	lines := make(map[string]int, len(node.Content)/2)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, child := node.Content[i], node.Content[i+1]
		childPath := strings.TrimPrefix(path+"."+printable(key.Value), ".")
		if key.Kind != yaml.ScalarNode {
			r.Fail(key.Line, path, "write a plain word before the colon", "%s instead of a key", kind(key))
			continue
		}
		if first, ok := lines[key.Value]; ok {
			r.Fail(key.Line, childPath, "remove one of them", "repeated, first on line %d", first)
			continue
		}
		lines[key.Value] = key.Line
		visit(key.Value, key.Line, child, childPath)
	}
}

// Sequence calls visit for every element of a sequence.
func (r *Reader) Sequence(node *yaml.Node, path string, visit Value) {
	if node.Kind != yaml.SequenceNode {
		r.Fail(node.Line, path, "write a list: [a, b] or lines that begin with `-`", "%s instead of a list", kind(node))
		return
	}
	unread := r.unread[node]
	for i, child := range node.Content {
		if unread != nil {
			element, err := r.parsePiece(unread[i])
			if err != nil {
				r.broken = true
				return
			}
			child.Line = element.Line
			visit(element, path+"["+strconv.Itoa(i)+"]")
			continue
		}
		visit(child, path+"["+strconv.Itoa(i)+"]")
		child.Content = nil // a fleet's tree is ten times the fleet
	}
	delete(r.unread, node)
}

// Scalar returns the text of a plain or quoted value as it was written: 010 is "010", whatever YAML makes of it.
func (r *Reader) Scalar(node *yaml.Node, path string) (text string, ok bool) {
	if node.Kind != yaml.ScalarNode || node.Tag == nothing {
		r.Fail(node.Line, path, "write a single value", "%s instead of a value", kind(node))
		return "", false
	}
	return node.Value, true
}

// Value reads a single value by set, whose *model.Invalid is objected.
func (r *Reader) Value(set func(text string) error) Value {
	return func(node *yaml.Node, path string) {
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

// nothing is the tag of a key without a value, of ~ and of null.
const nothing = "!!null"

func kind(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.MappingNode:
		return "a mapping"
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case node.Tag == nothing:
		return "nothing"
	default:
		return "a single value"
	}
}
