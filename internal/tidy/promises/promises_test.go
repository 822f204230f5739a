package promises

import (
	"slices"
	"strings"
	"testing"
)

const head = "package p\n\nimport \"testing\"\n\n"

func TestPromisesAreReadWithTheirTests(t *testing.T) {
	found, err := Of("p/p_test.go", []byte(head+"// About something.\n//\n// Promise: Connections\n// are kept.\n"+
		"// Also held by TestB and\n// TestC.\n// Promise: `x` is kept.\n//\n// A note. Of two sentences.\nfunc TestA(t *testing.T) {}\n"))
	if err != nil || len(found) != 2 {
		t.Fatal(found, err)
	}
	if found[0].Sentence != "Connections are kept." || !slices.Equal(found[0].Tests, []string{"TestA", "TestB", "TestC"}) {
		t.Errorf("%+v", found[0])
	}
	if found[1].Sentence != "`x` is kept." || len(found[1].Tests) != 1 {
		t.Errorf("%+v", found[1])
	}
}

func TestMalformedPromisesAreRefused(t *testing.T) {
	for text, problem := range map[string]string{
		"// Promise: It is kept\nfunc TestA(t *testing.T) {}\n":                    "full stop",
		"// Promise: It is kept. It stays.\nfunc TestA(t *testing.T) {}\n":         "more than one sentence",
		"// Promise: it is kept.\nfunc TestA(t *testing.T) {}\n":                   "capital letter",
		"// Promise: It is kept.\nfunc helper() {}\n":                              "before a test",
		"// Promise: It is kept.\n\nfunc TestA(t *testing.T) {}\n":                 "before a test",
		"// Something.\n// Promise: It is kept.\n\nvar x int\n":                    "before a test",
		"// Promise: It is kept.\n// The end of it\nfunc TestA(t *testing.T) {}\n": "full stop",
	} {
		if _, err := Of("p_test.go", []byte(head+text)); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
