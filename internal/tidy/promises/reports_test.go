package promises

import (
	"reflect"
	"strings"
	"testing"
)

func TestReportsAreReadBeforeTests(t *testing.T) {
	const source = "package x\n\n// Promise: It works.\n// Public: a/b#1 (it\n// fails), c-d/e.f#22 (it stops, too).\nfunc TestX(t *testing.T) {}\n"
	found, err := Reports("x/x_test.go", []byte(source))
	if want := []Report{{"a/b#1", "it fails", "x/x_test.go", "TestX"}, {"c-d/e.f#22", "it stops, too", "x/x_test.go", "TestX"}}; err != nil || !reflect.DeepEqual(found, want) {
		t.Errorf("%+v: %v", found, err)
	}
	if promises, err := Of("x/x_test.go", []byte(source)); err != nil || len(promises) != 1 || promises[0].Sentence != "It works." {
		t.Errorf("%+v: %v", promises, err)
	}
	for _, wrong := range []string{strings.Replace(source, "a/b#1", "b#1", 1), strings.Replace(source, "too).", "too)", 1), strings.Replace(source, "TestX", "helper", 1),
		"package x\n\nfunc TestX(t *testing.T) {\n\t// Public: a/b#1 (it fails).\n}\n"} {
		if found, err := Reports("x/x_test.go", []byte(wrong)); err == nil {
			t.Errorf("%s: %+v", wrong, found)
		}
	}
}
