// Package goldentest holds code to vectors in a file, which code in other languages and documents are held to as well.
package goldentest

import (
	"encoding/json"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the file of vectors again")

// Check computes each vector of a file again, and fails where it differs, or where there are fewer than least. With -update the file is written first, of
// inputs.
func Check[V comparable](t *testing.T, path string, least int, inputs func() []V, compute func(t *testing.T, v *V)) {
	t.Helper()
	if *update {
		vectors := inputs()
		for i := range vectors {
			compute(t, &vectors[i])
		}
		text, err := json.MarshalIndent(vectors, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var vectors []V
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < least {
		t.Fatalf("only %d vectors", len(vectors))
	}
	for i, want := range vectors {
		have := want
		compute(t, &have)
		if have != want {
			t.Errorf("vector %d:\nhave %+v\nwant %+v", i, have, want)
		}
	}
}
