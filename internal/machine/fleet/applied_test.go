package fleet

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

func TestAnAppliedFileSaysAllButWeightsAndStates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, file, running := anyFleet("base").Draw(t, "base"), anyFleet("file").Draw(t, "file"), anyFleet("running").Draw(t, "running")
		merged, changes := mergeFile(applied(&model.Fleet{}, &running), file, running)
		if left := Diff(merged, file); len(left) != 0 {
			t.Errorf("the first file left %q", left)
		}
		if told := Diff(running, merged); !reflect.DeepEqual(changes, told) {
			t.Errorf("it does %q and tells %q", told, changes)
		}
		merged, _ = mergeFile(applied(&base, &running), file, running)
		for _, line := range Diff(merged, file) {
			if !strings.Contains(line, ": weight ") && !strings.Contains(line, ": state ") {
				t.Errorf("a file left %q", line)
			}
		}
	})
}

func TestWhatIsKeptOfAnAppliedFileIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, running := anyFleet("base").Draw(t, "base"), anyFleet("running").Draw(t, "running")
		least := (&Desired{Base: base, Running: running}).Overridden()
		if !reflect.DeepEqual(applied(&least, &running), applied(&base, &running)) {
			t.Errorf("%+v is too little", least)
		}
		if same := (&Desired{Base: running, Running: running}).Overridden(); len(same.Services)+len(same.Nodes) != 0 {
			t.Errorf("nothing was set, and kept is %+v", same)
		}
	})
}

func TestAnEditOfADrainReplacesItsDeadline(t *testing.T) {
	base, edited, running := mustParse(t, minimal), mustParse(t, minimal), mustParse(t, minimal)
	server(&running, "s1").State, server(&running, "s1").Deadline = model.StateDraining, time.Unix(1e9, 0)
	server(&edited, "s1").State = model.StateOff
	merged, _ := mergeFile(base, edited, running)
	if s := server(&merged, "s1"); s.State != model.StateOff || !s.Deadline.IsZero() {
		t.Errorf("merged to %+v", s)
	}
}
