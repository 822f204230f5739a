package software

import (
	"bytes"
	"net/netip"
	"os"
	"strings"
	"testing"
)

func TestDocumentsShowWhatRoutersOfALabRun(t *testing.T) {
	text, err := os.ReadFile("../../../docs/run/bgp.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, neighbors := range map[string][]Neighbor{"bird": nil, "frr": {{Address: netip.MustParseAddr("10.20.1.2")}}} {
		var config bytes.Buffer
		if err := configurations.ExecuteTemplate(&config, name, neighbors); err != nil {
			t.Fatal(err)
		}
		_, shown, _ := strings.Cut(config.String(), "\n") // the router's id is its own
		if !strings.Contains(string(text), strings.TrimRight(shown, "\n")) {
			t.Errorf("docs/run/bgp.md does not show\n%s", shown)
		}
	}
}
