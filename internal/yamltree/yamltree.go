// Package yamltree reads strict YAML: it walks a file's tree, knows the line of every key, and collects objections instead of stopping at the
// first. Configuration files and scenarios of the simulator are read by it. No schema here has a use for anchors, tags, values of several lines or
// several documents, and so they are refused; values are texts until their reader makes something of them.
package yamltree

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/ballast-lb/ballast/internal/model"
)

// maxNesting bounds brackets and dashes that are open at once: no schema needs as many, and the parser recurses.
const maxNesting = 16

// byteOrderMark is what some editors begin a file in UTF-8 with; it says nothing.
const byteOrderMark = "\ufeff"

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

// Value reads one node, found at a path.
type Value func(node ast.Node, path string)

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
func (r *Reader) Parse(text []byte) (root ast.Node) {
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
	tokens := lexer.Tokenize(strings.TrimPrefix(string(text), byteOrderMark))
	if !r.checkTokens(tokens) {
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.syntaxError(err)
		return nil
	}
	var documents []ast.Node
	for _, document := range file.Docs {
		if document.Body != nil {
			documents = append(documents, document.Body)
		}
	}
	switch {
	case len(documents) == 0:
		r.Fail(1, "", r.rules.Empty, "the file is empty")
		return nil
	case len(documents) > 1:
		r.Fail(Line(documents[1]), "", "keep one of them", "the file has %d documents", len(documents))
		return nil
	}
	return documents[0]
}

// checkTokens refuses what no schema has a use for, before the parser recurses into it.
func (r *Reader) checkTokens(tokens token.Tokens) bool {
	brackets, dashes, dashLine := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.AnchorType, token.AliasType, token.TagType, token.MergeKeyType, token.DirectiveType, token.MappingKeyType,
			token.LiteralType, token.FoldedType:
			r.Fail(t.Position.Line, "", "write values out in full, on one line", "%q is not supported here", strings.TrimSpace(t.Value))
			return false
		case token.SequenceStartType, token.MappingStartType:
			brackets++
		case token.SequenceEndType, token.MappingEndType:
			brackets--
		case token.SequenceEntryType:
			if t.Position.Line != dashLine {
				dashes, dashLine = 0, t.Position.Line
			}
			dashes++
		}
		if brackets > maxNesting || dashes > maxNesting {
			r.Fail(t.Position.Line, "", "flatten it", "nested too deeply")
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

func (r *Reader) syntaxError(err error) {
	line, problem := 1, err.Error()
	var syntax *yaml.SyntaxError
	if errors.As(err, &syntax) {
		problem = syntax.Message
		if syntax.Token != nil {
			line = syntax.Token.Position.Line
		}
	}
	problem, _, _ = strings.Cut(problem, "\n")
	r.Fail(line, "", "see https://yaml.org", "not YAML: %s", problem)
}

// Mapping reads a mapping whose keys are all in fields; a nil field is an error of this program.
func (r *Reader) Mapping(node ast.Node, path string, fields map[string]Value) {
	r.Entries(node, path, func(key string, line int, child ast.Node, childPath string) {
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
func (r *Reader) Entries(node ast.Node, path string, visit func(key string, line int, child ast.Node, childPath string)) {
	mapping, ok := node.(ast.MapNode)
	if !ok {
		r.Fail(Line(node), path, "write `key: value` lines", "%s instead of a mapping", kind(node))
		return
	}
	for entry := mapping.MapRange(); entry.Next(); {
		key := entry.Key().GetToken()
		childPath := strings.TrimPrefix(path+"."+printable(key.Value), ".")
		if first, ok := r.lines[childPath]; ok {
			r.Fail(key.Position.Line, childPath, "remove one of them", "repeated, first on line %d", first)
			continue
		}
		r.lines[childPath] = key.Position.Line
		visit(key.Value, key.Position.Line, entry.Value(), childPath)
	}
}

// Sequence calls visit for every element of a sequence.
func (r *Reader) Sequence(node ast.Node, path string, visit Value) {
	sequence, ok := node.(*ast.SequenceNode)
	if !ok {
		r.Fail(Line(node), path, "write a list: [a, b] or lines that begin with `-`", "%s instead of a list", kind(node))
		return
	}
	for i, child := range sequence.Values {
		childPath := fmt.Sprintf("%s[%d]", path, i)
		r.lines[childPath] = Line(child)
		visit(child, childPath)
	}
}

// Scalar returns the text of a plain or quoted value as it was written: 010 is "010", whatever YAML makes of it.
func (r *Reader) Scalar(node ast.Node, path string) (text string, ok bool) {
	switch node.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return node.GetToken().Value, true
	}
	r.Fail(Line(node), path, "write a single value", "%s instead of a value", kind(node))
	return "", false
}

// Value reads a single value by set, whose *model.Invalid is objected.
func (r *Reader) Value(set func(text string) error) Value {
	return func(node ast.Node, path string) {
		text, ok := r.Scalar(node, path)
		if !ok {
			return
		}
		var invalid *model.Invalid
		if err := set(text); errors.As(err, &invalid) {
			r.Fail(Line(node), path, invalid.Remedy, "%s", invalid.Problem)
		}
	}
}

// Line returns the line that a node begins on.
func Line(node ast.Node) int {
	if mapping, ok := node.(*ast.MappingNode); ok && !mapping.IsFlowStyle && len(mapping.Values) > 0 {
		return Line(mapping.Values[0].Key)
	}
	if entry, ok := node.(*ast.MappingValueNode); ok {
		return Line(entry.Key)
	}
	if node == nil || node.GetToken() == nil {
		return 1
	}
	return node.GetToken().Position.Line
}

func kind(node ast.Node) string {
	switch node.(type) {
	case ast.MapNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	default:
		return "a single value"
	}
}
