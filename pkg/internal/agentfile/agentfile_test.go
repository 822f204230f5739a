package agentfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type keys struct {
	Number int    `json:"number"`
	Key    Secret `json:"key"`
}

// rising files have numbers that grow.
func rising(file, before *keys) error {
	if before != nil && file.Number <= before.Number {
		return fmt.Errorf("%d after %d", file.Number, before.Number)
	}
	return nil
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

func TestAFileIsFollowedAsFarAsItIsRight(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.json")
	if _, err := Open(path, rising); !os.IsNotExist(err) {
		t.Error(err)
	}
	put(t, path, `{"number": 1, "key": "00ff"}`)
	f, err := Open(path, rising)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		text string
		want int
		bad  bool
	}{{`{"number": 2}`, 2, false}, {`{"number": 1}`, 2, true}, {`{"number": 3, "key": "0"}`, 2, true}, {`{"number": 3`, 2, true}, {`{"number": 3}`, 3, false}} {
		put(t, path, step.text)
		f.Again()
		if got := f.Current(); got.Number != step.want || (f.Err() != nil) != step.bad {
			t.Errorf("after %s: %d, %v", step.text, got.Number, f.Err())
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	file := keys{Key: Secret{0xab, 0xcd}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q"} {
		if said := fmt.Sprintf(verb, file); strings.Contains(said, "abcd") || strings.Contains(said, "171") || strings.Contains(said, "0xab") {
			t.Errorf("%s: %s", verb, said)
		}
	}
	text, err := json.Marshal(file)
	if err != nil || string(text) != `{"number":0,"key":"abcd"}` {
		t.Errorf("%s, %v", text, err)
	}
	var again keys
	if err := json.Unmarshal(text, &again); err != nil || string(again.Key) != string(file.Key) {
		t.Errorf("%s is %v, %v", text, again, err)
	}
}
