package version

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/objects"
)

func TestVersionTellsWhatItBringsForTheKernel(t *testing.T) {
	var out bytes.Buffer
	cmd := Command("1.2.3")
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"-o", "json"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	var v versions
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	if v.Version != "1.2.3" || v.Protocol == 0 || !strings.HasPrefix(v.Go, "go1.") || len(v.Objects) != len(objects.All()) {
		t.Errorf("%+v", v)
	}
	sums := map[string]bool{}
	for i, o := range objects.All() {
		if file, err := elf.NewFile(bytes.NewReader(o.Content)); err != nil || file.Machine != elf.EM_BPF {
			t.Errorf("%s is no BPF object: %v", o.Name, err)
		}
		sums[v.Objects[i].SHA256] = true
	}
	if len(sums) != len(v.Objects) {
		t.Errorf("%d sums of %d objects", len(sums), len(v.Objects))
	}
}
