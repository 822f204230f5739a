package yamltree

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// said is everything that a reader makes of a text: values with their places, and objections.
func said(text string, wholeUpTo int) (values []string, objections []Objection, whole bool) {
	r := New(Rules{Bytes: 1 << 20, TooLarge: "make it smaller", Empty: "write something"})
	r.wholeUpTo = wholeUpTo
	var visit func(node *yaml.Node, path string)
	visit = func(node *yaml.Node, path string) {
		switch node.Kind {
		case yaml.MappingNode:
			r.Entries(node, path, func(_ string, _ int, child *yaml.Node, childPath string) { visit(child, childPath) })
		case yaml.SequenceNode:
			r.Sequence(node, path, visit)
		default:
			text, _ := r.Scalar(node, path)
			values = append(values, fmt.Sprintf("%d %s=%q", node.Line, path, text))
		}
	}
	r.Read([]byte(text), func(root *yaml.Node) {
		values = nil
		visit(root, "")
	})
	if r.root == nil {
		values = nil // of a first call without a second
	}
	for _, path := range []string{"a[0]", "a[1].b", "a[0].b[1]", "b[1]", "b.a"} {
		values = append(values, fmt.Sprint(path, r.Has(path), r.LineOf(path)))
	}
	return values, r.Objections(), r.unread == nil || r.broken
}

// Lines of which texts are made that are read in pieces, or that only look like it.
var lines = []string{
	"a:", "b:", "a: # list", "a: 1", "- 1", "- a: 1", "-", "-  b: [1, 2]", "  - 1", "  - a: 1", "  - b:", "    b: 2", "    - 3", "      - 4", "  b: 3", "    b: {c: d}",
	"", "# c", "    # - d", "  - \"x", "    y\"", "- 'x", "y'", "  - [1,", "    2]", "2]", "  - &x 1", "  - *x", "  - |", "     text", "  - !!str 5", "---", "...", "%YAML 1.1",
	"  -\tx", "\t- x", "- - 1", "  - - 2", "c: \"", "\"", "a: [", "]", "  - {a: 1,", "  b: 2}", "? x", ": y", "  - ~", "<<: {}", "  - x: y: z", "  a:",
}

// piecesText is one that is read in pieces.
const piecesText = "a:\n  - b: 1\n    c: [1, 2]\n  - b: \"x\n    y\"\nb:\n- 1\n- 2\n"

// readBothWays compares what a text is in pieces, from wholeUpTo bytes on, and as a whole.
func readBothWays(t interface{ Fatalf(string, ...any) }, text string, wholeUpTo int) (whole bool) {
	wantValues, wantObjections, _ := said(text, len(text))
	values, objections, whole := said(text, wholeUpTo)
	if !slices.Equal(values, wantValues) || !slices.Equal(objections, wantObjections) {
		t.Fatalf("%q\npieces: %q %v\nwhole: %q %v", text, values, objections, wantValues, wantObjections)
	}
	return whole
}

func TestPiecesAreReadAsTheWhole(t *testing.T) {
	if readBothWays(t, piecesText, 0) {
		t.Fatalf("%q was not read in pieces", piecesText)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"", "a:\n- 1\n", "b:\n  - a: 1\n"}).Draw(t, "begin") +
			strings.Join(rapid.SliceOfN(rapid.SampledFrom(lines), 1, 14).Draw(t, "lines"), "\n") + rapid.SampledFrom([]string{"", "\n", "\n\n"}).Draw(t, "end")
		readBothWays(t, text, 0)
	})
}

func FuzzPiecesAreReadAsTheWhole(f *testing.F) {
	f.Add(piecesText)
	f.Add("---\na:\n- b\r\n- c\n\u0085- d\n")
	f.Fuzz(func(t *testing.T, text string) { readBothWays(t, text, -1) })
}

// The tree of a whole file is thirty times as large as its text.
//
// Promise: A large file is read in little more memory than its text and what is made of it take.
func TestALargeFileIsNeverATreeAsAWhole(t *testing.T) {
	var b strings.Builder
	b.WriteString("lists:\n")
	const lists, elements = 50, 400
	for i := range lists {
		fmt.Fprintf(&b, "  - name: list%d\n    elements:\n", i)
		for j := range elements {
			fmt.Fprintf(&b, "      - {id: %d, name: element%d, address: 10.0.0.1}\n", j, j)
		}
	}
	text := []byte(b.String())
	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, most, seen := live(), uint64(0), 0
	r := New(Rules{Bytes: len(text)})
	r.Read(text, func(root *yaml.Node) {
		r.Entries(root, "", func(_ string, _ int, list *yaml.Node, path string) {
			r.Sequence(list, path, func(element *yaml.Node, path string) {
				if seen++; seen%10 == 1 {
					most = max(most, live()-before)
				}
				if len(element.Content[3].Content) != elements {
					t.Errorf("%s has %d elements", path, len(element.Content[3].Content))
				}
			})
		})
	})
	if limit := 2 * uint64(len(text)); seen != lists || r.Failed() > 0 || most > limit {
		t.Errorf("%d bytes, %d lists read, objections %v: %d bytes are in memory, %d may be", len(text), seen, r.Objections(), most, limit)
	}
}
