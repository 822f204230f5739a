package console

import (
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/lb"
)

// A verdict that is added to the program finds its group, or this says so.
func TestEveryVerdictOfAPacketToAServerHasARung(t *testing.T) {
	names, err := lb.VerdictNames()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "forwarded_") && rungOf[name] == "" {
			t.Errorf("%s is in no group", name)
		}
	}
	for name, rung := range rungOf {
		if !slices.Contains(names, name) || !slices.Contains(rungs, rung) {
			t.Errorf("%s is no verdict, or %s no group", name, rung)
		}
	}
}
