package command

import "testing"

func TestOneOfAThingIsNotCountedAsSeveral(t *testing.T) {
	for n, want := range []string{"0 services", "1 service", "2 services"} {
		if have := Counted(n, "service"); have != want {
			t.Errorf("%q, want %q", have, want)
		}
	}
}
