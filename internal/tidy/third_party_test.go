// The copies of other people's modules are what they say: the module of the version in go.mod, and what is marked as ours.
package tidy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

var (
	ours  = regexp.MustCompile(`(?s)[ \t]*// ballast: begin\n.*?// ballast: end\n`)
	blank = regexp.MustCompile(`\n\n+`)
)

func TestCopiedModulesAreTheirOriginalsWithMarkedChanges(t *testing.T) {
	const copied, path = "third_party/etcd-client-pkg", "go.etcd.io/etcd/client/pkg/v3"
	version := regexp.MustCompile(regexp.QuoteMeta(path) + ` (v\S+)`).FindStringSubmatch(string(read(t, "go.mod")))
	if version == nil {
		t.Fatalf("go.mod does not name %s", path)
	}
	download := exec.Command("go", "mod", "download", "-json", path+"@"+version[1])
	download.Stderr = os.Stderr
	out, err := download.Output()
	if err != nil {
		t.Fatal(err)
	}
	var original struct{ Dir string }
	if err := json.Unmarshal(out, &original); err != nil {
		t.Fatal(err)
	}
	compared, marked := 0, 0
	err = filepath.WalkDir(filepath.Join(root, copied), func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		have, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		below, _ := filepath.Rel(filepath.Join(root, copied), name)
		want, err := os.ReadFile(filepath.Join(original.Dir, below))
		if err != nil {
			return err
		}
		marked += len(ours.FindAll(have, -1))
		compared++
		squeeze := func(text []byte) string { return blank.ReplaceAllString(string(text), "\n") } // a change has blank lines around it
		if squeeze(ours.ReplaceAll(have, nil)) != squeeze(want) {
			t.Errorf("%s differs from %s of %s in more than what is marked", name, below, version[1])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if compared < 30 || marked != 4 {
		t.Errorf("%d files compared, %d changes marked", compared, marked)
	}
}
