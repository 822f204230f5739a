package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/ballast-lb/ballast/internal/model"
)

// maxNesting bounds brackets and dashes that are open at once: the schema needs 4, and the parser recurses.
const maxNesting = 16

// reader walks a YAML tree. It remembers the line of every key and collects objections.
type reader struct {
	file   string
	lines  map[string]int
	errors []*Error
}

// value reads one YAML node, found at path.
type value func(node ast.Node, path string)

func (r *reader) fail(line int, path, remedy, problem string, args ...any) {
	r.errors = append(r.errors, &Error{File: r.file, Line: line,
		Reason: &model.Invalid{Path: path, Problem: fmt.Sprintf(problem, args...), Remedy: remedy}})
}

// parse returns the root of the only document, or nil after an objection.
func (r *reader) parse(text []byte) (root ast.Node) {
	if len(text) > MaxBytes {
		r.fail(1, "", "split the fleet", "the file is larger than %d bytes", MaxBytes)
		return nil
	}
	// The YAML library has panicked on odd input before; a bad file must not take the daemon down.
	defer func() {
		if problem := recover(); problem != nil {
			r.fail(1, "", "write plainer YAML", "the YAML parser gave up: %v", problem)
			root = nil
		}
	}()
	tokens := lexer.Tokenize(string(text))
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
		r.fail(1, "", "write `services: []` to remove every service", "the file is empty")
		return nil
	case len(documents) > 1:
		r.fail(lineOf(documents[1]), "", "keep one of them", "the file has %d documents", len(documents))
		return nil
	}
	return documents[0]
}

// checkTokens refuses what the schema has no use for, before the parser recurses into it.
func (r *reader) checkTokens(tokens token.Tokens) bool {
	brackets, dashes, dashLine := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.AnchorType, token.AliasType, token.TagType, token.MergeKeyType, token.DirectiveType, token.MappingKeyType,
			token.LiteralType, token.FoldedType:
			r.fail(t.Position.Line, "", "write values out in full, on one line", "%q is not supported here", strings.TrimSpace(t.Value))
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

func (r *reader) syntaxError(err error) {
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

// mapping reads a mapping whose keys are all in fields; a nil field is an error of this program.
func (r *reader) mapping(node ast.Node, path string, fields map[string]value) {
	r.entries(node, path, func(key string, line int, child ast.Node, childPath string) {
		read, ok := fields[key]
		if !ok {
			r.fail(line, childPath, "use one of "+strings.Join(sortedKeys(fields), ", "), "unknown key")
			return
		}
		read(child, childPath)
	})
}

// entries calls visit for every entry of a mapping, once per key.
func (r *reader) entries(node ast.Node, path string, visit func(key string, line int, child ast.Node, childPath string)) {
	mapping, ok := node.(ast.MapNode)
	if !ok {
		r.fail(lineOf(node), path, "write `key: value` lines", "%s instead of a mapping", kind(node))
		return
	}
	for entry := mapping.MapRange(); entry.Next(); {
		key := entry.Key().GetToken()
		childPath := strings.TrimPrefix(path+"."+key.Value, ".")
		if first, ok := r.lines[childPath]; ok {
			r.fail(key.Position.Line, childPath, "remove one of them", "repeated, first on line %d", first)
			continue
		}
		r.lines[childPath] = key.Position.Line
		visit(key.Value, key.Position.Line, entry.Value(), childPath)
	}
}

// sequence calls visit for every element of a sequence.
func (r *reader) sequence(node ast.Node, path string, visit value) {
	sequence, ok := node.(*ast.SequenceNode)
	if !ok {
		r.fail(lineOf(node), path, "write a list: [a, b] or lines that begin with `-`", "%s instead of a list", kind(node))
		return
	}
	for i, child := range sequence.Values {
		childPath := fmt.Sprintf("%s[%d]", path, i)
		r.lines[childPath] = lineOf(child)
		visit(child, childPath)
	}
}

// scalar returns the text of a plain or quoted value as it was written: 010 is "010", whatever YAML makes of it.
func (r *reader) scalar(node ast.Node, path string) (text string, ok bool) {
	switch node.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return node.GetToken().Value, true
	}
	r.fail(lineOf(node), path, "write a single value", "%s instead of a value", kind(node))
	return "", false
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

func sortedKeys(fields map[string]value) []string {
	var keys []string
	for key := range fields {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
