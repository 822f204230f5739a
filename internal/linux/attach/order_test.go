package attach

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Names of ours are those of the programs that are attached to devices.
func TestOwnProgramsAreKnownByName(t *testing.T) {
	attached := regexp.MustCompile(`SEC\("(tc|xdp\.frags)"\)\nint (\w+)\(`)
	sources, err := filepath.Glob("../../../bpf/*.bpf.c")
	if err != nil || len(sources) == 0 {
		t.Fatal("no sources:", err)
	}
	there := map[string]bool{}
	for _, source := range sources {
		content, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range attached.FindAllStringSubmatch(string(content), -1) {
			kind, name := match[1], match[2]
			name = name[:min(len(name), 15)] // as the kernel keeps it
			_, listed := ownPrograms[name]
			if there[name] = true; kind == "tc" && !listed && filepath.Base(source) != "link.bpf.c" { // of labs
				t.Errorf("%s is attached at tc, and would be somebody else's", name)
			}
		}
	}
	for name := range ownPrograms {
		if !there[name] {
			t.Errorf("there is no program %s", name)
		}
	}
}
