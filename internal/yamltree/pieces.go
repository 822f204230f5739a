package yamltree

import (
	"bytes"
	"errors"

	"go.yaml.in/yaml/v3"
)

// wholeUpTo is the size of the largest file that is parsed at once: its tree takes about thirty times as much.
const wholeUpTo = 64 << 10

// pieces are the elements of a list of the root, in text of their own that is parsed when they are read.
type pieces struct {
	line  int // of the list's key
	texts []piece
}

// piece is one element, its dash included.
type piece struct {
	line int // of the dash, counted from 1
	text []byte
}

// errPiece is a piece that is not one element, or that must be refused: the whole file says why.
var errPiece = errors.New("not an element alone")

// split takes the elements out of the lists in the root that have a line for each dash. skeleton is the text in which of every element the dash alone is left,
// so that lines keep their numbers. It goes by lines and knows nothing of quotes: whoever parses skeleton and pieces must find in each what split took it for.
// Then they are what the whole is: the text up to a list is that of the skeleton, and nothing is open where a piece that parses alone has ended.
func split(text []byte) (skeleton []byte, lists []pieces) {
	if bytes.ContainsAny(text, "\r\x00\u0085\u2028\u2029\ufeff") { // other ends of lines, which would have to be counted
		return nil, nil
	}
	skeleton = make([]byte, 0, len(text)/8)
	var list *pieces // that lines belong to
	key, indent, start := 0, 0, 0
	end := func(at int) {
		if list != nil {
			last := &list.texts[len(list.texts)-1]
			last.text = text[start:at]
			list = nil
		}
	}
	for at, number := 0, 1; at < len(text); number++ {
		line := text[at:]
		if after := bytes.IndexByte(line, '\n'); after >= 0 {
			line = line[:after+1]
		}
		content := bytes.TrimLeft(line, " ")
		spaces := len(line) - len(content)
		blank := len(content) == 0 || content[0] == '\n' || content[0] == '#'
		dash := len(content) > 0 && content[0] == '-' && (len(content) == 1 || content[1] == ' ' || content[1] == '\n')
		switch {
		case list != nil && !blank && spaces == indent && dash:
			list.texts[len(list.texts)-1].text = text[start:at]
			list.texts, start = append(list.texts, piece{line: number}), at
			skeleton = append(append(skeleton, line[:spaces+1]...), '\n')
		case list != nil && (blank || spaces > indent):
			skeleton = append(skeleton, '\n')
		case list == nil && key != 0 && dash:
			lists = append(lists, pieces{key, []piece{{line: number}}})
			list, indent, start = &lists[len(lists)-1], spaces, at
			skeleton = append(append(skeleton, line[:spaces+1]...), '\n')
			key = 0
		default:
			end(at)
			skeleton = append(skeleton, line...)
			if !blank {
				key = 0
				if spaces == 0 && bytes.HasSuffix(bytes.TrimRight(line, " \n"), []byte(":")) {
					key = number
				}
			}
		}
		at += len(line)
	}
	end(len(text))
	return skeleton, lists
}

// parsePieces returns the root with lists whose elements Sequence parses, and those lists. nil: the text must be parsed as a whole.
func (r *Reader) parsePieces(text []byte) (root *yaml.Node, lists map[*yaml.Node][]piece) {
	skeleton, split := split(text)
	if len(split) == 0 {
		return nil, nil
	}
	root, err := parse(skeleton)
	if err != nil || root == nil || root.Kind != yaml.MappingNode {
		return nil, nil
	}
	lists = make(map[*yaml.Node][]piece, len(split))
	for i := 0; i+1 < len(root.Content) && len(split) > 0; i += 2 {
		key, list := root.Content[i], root.Content[i+1]
		if key.Line != split[0].line {
			continue
		}
		if list.Kind != yaml.SequenceNode || len(list.Content) != len(split[0].texts) || list.Style != 0 {
			return nil, nil
		}
		for j, element := range list.Content {
			if element.Kind != yaml.ScalarNode || element.Tag != nothing {
				return nil, nil
			}
			element.Line = split[0].texts[j].line
		}
		lists[list], split = split[0].texts, split[1:]
	}
	before := len(r.objections)
	if len(split) > 0 || !r.check(root, 0) {
		r.objections = r.objections[:before]
		return nil, nil
	}
	return root, lists
}

// readRest finds mistakes in lists that nobody wants, of keys that are unknown or repeated.
func (r *Reader) readRest() {
	for _, list := range r.unread {
		for _, p := range list {
			if _, err := r.parsePiece(p); err != nil {
				r.broken = true
				return
			}
		}
	}
}

// parsePiece returns the element that a piece is of.
func (r *Reader) parsePiece(p piece) (*yaml.Node, error) {
	list, err := parse(p.text)
	if err != nil || list == nil || list.Kind != yaml.SequenceNode || len(list.Content) != 1 || list.Line != 1 || list.Style != 0 {
		return nil, errPiece
	}
	before := len(r.objections)
	if !r.check(list, 1) {
		r.objections = r.objections[:before]
		return nil, errPiece
	}
	move(list, p.line-1)
	return list.Content[0], nil
}

// move adds lines to where a node is said to be.
func move(node *yaml.Node, lines int) {
	node.Line += lines
	for _, child := range node.Content {
		move(child, lines)
	}
}
