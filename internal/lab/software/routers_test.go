package software

import (
	"bytes"
	"net/netip"
	"os"
	"strings"
	"testing"
)

func TestExamplesAreWhatRoutersOfALabRun(t *testing.T) {
	for name, neighbors := range map[string][]Neighbor{"bird": nil, "frr": {{Address: netip.MustParseAddr("10.20.1.2")}}} {
		var config bytes.Buffer
		if err := configurations.ExecuteTemplate(&config, name, neighbors); err != nil {
			t.Fatal(err)
		}
		_, shown, _ := strings.Cut(config.String(), "\n") // the router's id is its own
		text, err := os.ReadFile("../../../examples/bgp/" + name + ".conf")
		if err != nil || !strings.Contains(string(text), strings.TrimRight(shown, "\n")) {
			t.Errorf("examples/bgp/%s.conf (%v) is not\n%s", name, err, shown)
		}
	}
}
