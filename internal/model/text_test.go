package model

import "testing"

func TestOneOfAThingIsNotCountedAsSeveral(t *testing.T) {
	for n, want := range []string{"0 services are", "1 service is", "2 services are"} {
		if have := Counted(n, "service is", "services are"); have != want {
			t.Errorf("%q, want %q", have, want)
		}
	}
}
