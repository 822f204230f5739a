package yamltree

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/model"
)

// read reads a file with the keys size, from 2 to 9, and names, and returns its objections.
func read(text string) (size int, names []string, r *Reader) {
	r = New(Rules{Bytes: 1000, TooLarge: "make it smaller", Empty: "write something"})
	if root := r.Parse([]byte(text)); root != nil {
		r.Mapping(root, "", map[string]Value{
			"size": r.Value(func(text string) (err error) {
				size, err = model.ParseNumber(text, 2, 9)
				return err
			}),
			"names": func(node *yaml.Node, path string) {
				r.Sequence(node, path, func(node *yaml.Node, path string) {
					if name, ok := r.Scalar(node, path); ok {
						names = append(names, name)
					}
				})
			},
		})
	}
	return size, names, r
}

func TestValuesAreTextsUntilTheirReaderSaysOtherwise(t *testing.T) {
	size, names, r := read("names: [010, 1e3, yes, '', ~x]\nsize: \"4\"")
	if size != 4 || fmt.Sprint(names) != "[010 1e3 yes  ~x]" || r.Failed() > 0 {
		t.Errorf("%d, %q, %v", size, names, r.Objections())
	}
}

func TestObjectionsSayWhereAndWhatToDo(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "1 : the file is empty: write something",
		strings.Repeat(" ", 1001):         "1 : the file is larger than 1000 bytes: make it smaller",
		"size: 3\nnames: |\n  a\n":        `2 : "|" is not supported here: write values out in full, on one line`,
		"names: [a]\nsize: *three":        `2 : "*three" is not supported here: write values out in full, on one line`,
		"names: &all [a]":                 `1 : "&all" is not supported here: write values out in full, on one line`,
		"size: !!int 3":                   `1 : "!!int" is not supported here: write values out in full, on one line`,
		"size: 3\n<<: {size: 4}":          `2 : "<<" is not supported here: write values out in full, on one line`,
		"size: 3\n? [a, b]\n: 4":          "2 : a list instead of a key: write a plain word before the colon",
		"names: [a\nsize: 3":              "1 : not YAML: did not find expected ',' or ']': see https://yaml.org",
		strings.Repeat("[", 999):          "1 : not YAML: did not find expected node content: see https://yaml.org",
		"names: >-\n  a\n":                `1 : ">" is not supported here: write values out in full, on one line`,
		"size: 3\n---\nsize: 4":           "3 : the file has several documents: keep one of them",
		"names: [a,\n  {b: c}]":           "2 names[1]: a mapping instead of a value: write a single value",
		"names:":                          "1 names: nothing instead of a list: write a list: [a, b] or lines that begin with `-`",
		"size: 1":                         `1 size: 1 is out of range: use 2 to 9`,
		"size: 10":                        `1 size: 10 is out of range: use 2 to 9`,
		"size: +3":                        `1 size: "+3" is not such a number: use a decimal number from 2 to 9`,
		"names: [a]\nsize: 3\nnames: [b]": "3 names: repeated, first on line 1: remove one of them",
		"length: 3":                       "1 length: unknown key: use one of names, size",
		`"\e]0;mine\a\nsize": 1`:          `1 "\x1b]0;mine\a\nsize": unknown key: use one of names, size`,
		"names: " + strings.Repeat("[", 17) + strings.Repeat("]", 17): "1 : nested too deeply: flatten it",
		"names:\n" + strings.Repeat("- ", 300):                        "2 : nested too deeply: flatten it",
	} {
		_, _, r := read(text)
		var have []string
		for _, o := range r.Objections() {
			have = append(have, fmt.Sprintf("%d %s: %s: %s", o.Line, o.Path, o.Problem, o.Remedy))
		}
		if len(have) != 1 || have[0] != want {
			t.Errorf("%q: have %q, want %q", text, have, want)
		}
	}
}

func TestObjectionsComeInTheOrderOfTheLines(t *testing.T) {
	_, _, r := read("# first\nnames:\n  - a\n  - b\nsize: x\n")
	r.FailAt("names[1].colour", "remove it", "red")
	r.FailAt("colour", "add it", "missing")
	var lines []int
	for _, o := range r.Objections() {
		lines = append(lines, o.Line)
	}
	if fmt.Sprint(lines) != "[1 4 5]" || r.Failed() != 3 {
		t.Errorf("lines %v", lines)
	}
	if !r.Has("names[1]") || r.Has("names[2]") || r.LineOf("names[2]") != 2 {
		t.Error("it does not know what the file has, and where")
	}
}

func TestJSONIsWrittenAsYAMLThatReadsBack(t *testing.T) {
	const given = `{"z":1,"a":["x","2001:db8::1","on","12:30"],"empty":{},"none":null,"list":[{"text":"two\nlines"},{"number":"010"}],"1":true}`
	text, err := FromJSON([]byte(given))
	const want = `z: 1
a: [x, '2001:db8::1', "on", "12:30"]
empty: {}
none: null
list:
  - text: "two\nlines"
  - number: "010"
"1": true
`
	if err != nil || string(text) != want {
		t.Errorf("%v\n%s", err, text)
	}
	var have, same any
	if err := yaml.Unmarshal(text, &have); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(given), &same); err != nil {
		t.Fatal(err)
	}
	if a, b := fmt.Sprint(have), fmt.Sprint(same); a != b {
		t.Errorf("read back as %s instead of %s", a, b)
	}
	if _, err := FromJSON([]byte("{")); err == nil {
		t.Error("half of an object is accepted")
	}
}
