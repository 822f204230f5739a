package rendezvous

import (
	"fmt"
	"slices"
	"testing"
)

func TestElectionsMoveOnlyWhatMust(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	count, moved := map[string]int{}, 0
	const subjects = 4000
	for i := range subjects {
		subject := fmt.Sprint("service", i)
		elected := Elect(subject, names, 3)
		slices.Reverse(names)
		if again := Elect(subject, names, 3); !slices.Equal(again, elected) || Elect(subject, names, 1)[0] != elected[0] {
			t.Fatalf("%v, then %v", elected, again)
		}
		count[elected[0]]++
		if fewer := Elect(subject, []string{"a", "b", "c"}, 1)[0]; fewer != elected[0] {
			moved++
		}
	}
	for name, n := range count {
		if n < subjects/4*9/10 || n > subjects/4*11/10 {
			t.Errorf("%s has %d of %d", name, n, subjects)
		}
	}
	if moved != count["d"] {
		t.Errorf("%d moved, %d had to", moved, count["d"])
	}
	if Elect("x", nil, 1) != nil && len(Elect("x", nil, 3)) != 0 {
		t.Error("nobody was elected from nobody")
	}
}
