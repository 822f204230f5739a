package world

import (
	"os"
	"strings"
	"testing"
)

func TestDocumentsShowWhatRoutersOfALabRun(t *testing.T) {
	text, err := os.ReadFile("../../../docs/run/bgp.md")
	if err != nil {
		t.Fatal(err)
	}
	_, bird, _ := strings.Cut(BIRDConfig, "\n") // the router's id is its own
	_, frr, _ := strings.Cut(FRRConfig, "\n")
	for _, config := range []string{bird, frr} {
		if !strings.Contains(string(text), config) {
			t.Errorf("docs/run/bgp.md does not show\n%s", config)
		}
	}
}
