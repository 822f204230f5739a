package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Implementation constants: what is read at most. The YAML parser recurses.
const (
	maxBytes   = 1 << 20
	maxNesting = 16
)

// Error is one objection to a scenario file.
type Error struct {
	File    string
	Line    int    // counted from 1
	Path    string // of the key: "events[2].at"
	Problem string
	Remedy  string
}

// Error returns file:line: key: problem: remedy.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s:%d: ", e.File, e.Line)
	if e.Path != "" {
		text += e.Path + ": "
	}
	return text + e.Problem + ": " + e.Remedy
}

// reader walks the tree of a file, remembers the line of every key, and collects objections.
type reader struct {
	file   string
	open   Opener
	lines  map[string]int
	errors []*Error
}

// field reads one node, found at a path.
type field func(node ast.Node, path string)

func (r *reader) fail(line int, path, remedy, problem string, values ...any) {
	r.errors = append(r.errors, &Error{r.file, line, path, fmt.Sprintf(problem, values...), remedy})
}

// failAt objects to what is at a path, or to the nearest thing around it when it is not in the file.
func (r *reader) failAt(path, remedy, problem string, values ...any) {
	around := path
	for {
		if line, ok := r.lines[around]; ok || around == "" {
			r.fail(max(line, 1), path, remedy, problem, values...)
			return
		}
		around = around[:max(strings.LastIndexAny(around, ".["), 0)]
	}
}

func (r *reader) joined() error {
	slices.SortStableFunc(r.errors, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	var list []error
	for _, e := range r.errors {
		list = append(list, e)
	}
	return errors.Join(list...)
}

// parse returns the root of the only document, or nil after an objection.
func (r *reader) parse(text []byte) (root ast.Node) {
	if len(text) > maxBytes {
		r.fail(1, "", "give connections in a file of their own", "the file is larger than %d bytes", maxBytes)
		return nil
	}
	// The YAML library has panicked on odd input before.
	defer func() {
		if problem := recover(); problem != nil {
			r.fail(1, "", "write plainer YAML", "the YAML parser gave up: %v", problem)
			root = nil
		}
	}()
	tokens := lexer.Tokenize(string(text))
	if !r.plain(tokens) {
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.syntax(err)
		return nil
	}
	for _, document := range file.Docs {
		if document.Body == nil {
			continue
		}
		if root != nil {
			r.fail(lineOf(document.Body), "", "keep one of them", "a second document")
			return nil
		}
		root = document.Body
	}
	if root == nil {
		r.fail(1, "", "see docs/simulator.md", "the file is empty")
	}
	return root
}

// plain refuses what scenarios have no use for, before the parser recurses into it.
func (r *reader) plain(tokens token.Tokens) bool {
	brackets, dashes, dashLine := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.AnchorType, token.AliasType, token.TagType, token.MergeKeyType, token.DirectiveType, token.MappingKeyType:
			r.fail(t.Position.Line, "", "write values out in full", "%q is not supported here", strings.TrimSpace(t.Value))
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
			r.fail(t.Position.Line, "", "flatten it", "nested too deeply")
			return false
		}
	}
	return true
}

func (r *reader) syntax(err error) {
	line, problem := 1, err.Error()
	var syntax *yaml.SyntaxError
	if errors.As(err, &syntax) {
		problem = syntax.Message
		if syntax.Token != nil {
			line = syntax.Token.Position.Line
		}
	}
	problem, _, _ = strings.Cut(problem, "\n")
	r.fail(line, "", "see https://yaml.org", "not YAML: %s", problem)
}

// mapping reads a mapping whose keys are all in fields.
func (r *reader) mapping(node ast.Node, path string, fields map[string]field) {
	mapping, ok := node.(ast.MapNode)
	if !ok {
		r.fail(lineOf(node), path, "write `key: value` lines", "this is not a mapping")
		return
	}
	for entry := mapping.MapRange(); entry.Next(); {
		key := entry.Key().GetToken()
		child := strings.TrimPrefix(path+"."+key.Value, ".")
		if first, ok := r.lines[child]; ok {
			r.fail(key.Position.Line, child, "remove one of them", "repeated, first on line %d", first)
			continue
		}
		r.lines[child] = key.Position.Line
		if read, ok := fields[key.Value]; ok {
			read(entry.Value(), child)
			continue
		}
		var known []string
		for name := range fields {
			known = append(known, name)
		}
		slices.Sort(known)
		r.fail(key.Position.Line, child, "use one of "+strings.Join(known, ", "), "unknown key")
	}
}

// list reads each element of a sequence.
func (r *reader) list(most int, read field) field {
	return func(node ast.Node, path string) {
		sequence, ok := node.(*ast.SequenceNode)
		switch {
		case !ok:
			r.fail(lineOf(node), path, "write lines that begin with `-`", "this is not a list")
			return
		case len(sequence.Values) > most:
			r.fail(lineOf(node), path, fmt.Sprintf("give at most %d", most), "there are %d", len(sequence.Values))
			return
		}
		for i, child := range sequence.Values {
			childPath := fmt.Sprintf("%s[%d]", path, i)
			r.lines[childPath] = lineOf(child)
			read(child, childPath)
		}
	}
}

// scalar returns the text of a value as it was written.
func (r *reader) scalar(node ast.Node, path string) (text string, ok bool) {
	switch node := node.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return node.GetToken().Value, true
	}
	r.fail(lineOf(node), path, "write a single value", "this is not a value")
	return "", false
}

func (r *reader) text(target *string) field {
	return func(node ast.Node, path string) {
		text, ok := r.scalar(node, path)
		if !ok {
			return
		}
		if *target = text; text == "" || len(text) > 200 {
			r.fail(lineOf(node), path, "give 1 to 200 letters", "%d letters", len(text))
		}
	}
}

func (r *reader) choice(target *string, choices []string) field {
	return func(node ast.Node, path string) {
		text, ok := r.scalar(node, path)
		if ok && !slices.Contains(choices, text) {
			r.fail(lineOf(node), path, "use one of "+strings.Join(choices, ", "), "%q is none of them", text)
		}
		*target = text
	}
}

// whole reads a whole number.
func (r *reader) whole(target *int, least, most int) field {
	return func(node ast.Node, path string) {
		text, ok := r.scalar(node, path)
		if !ok {
			return
		}
		number, err := strconv.Atoi(text)
		if err != nil || number < least || number > most {
			r.fail(lineOf(node), path, fmt.Sprintf("use a whole number from %d to %d", least, most), "%q is not such a number", text)
			return
		}
		*target = number
	}
}

// number reads a number that may have a fraction.
func (r *reader) number(target *float64, least, most float64) field {
	return func(node ast.Node, path string) {
		text, ok := r.scalar(node, path)
		if !ok {
			return
		}
		number, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(number) || number < least || number > most {
			r.fail(lineOf(node), path, fmt.Sprintf("use a number from %g to %g", least, most), "%q is not such a number", text)
			return
		}
		*target = number
	}
}

// duration reads a time like 250ms or 1m30s, in ns.
func (r *reader) duration(target *int64, least time.Duration) field {
	return func(node ast.Node, path string) {
		text, ok := r.scalar(node, path)
		if !ok {
			return
		}
		duration, err := time.ParseDuration(text)
		if err != nil || duration < least || duration > maxLength {
			r.fail(lineOf(node), path, fmt.Sprintf("use a time from %v to %v, like 250ms or 1m30s", least, maxLength), "%q is not such a time", text)
			return
		}
		*target = duration.Nanoseconds()
	}
}

func lineOf(node ast.Node) int {
	if mapping, ok := node.(*ast.MappingNode); ok && !mapping.IsFlowStyle && len(mapping.Values) > 0 {
		return lineOf(mapping.Values[0].Key)
	}
	if entry, ok := node.(*ast.MappingValueNode); ok {
		return lineOf(entry.Key)
	}
	if node == nil || node.GetToken() == nil {
		return 1
	}
	return node.GetToken().Position.Line
}
