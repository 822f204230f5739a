package verdict_test

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/linux/verdict"
)

// Promise: Every counter of the data path is explained by `ballast ctl counter explain`.
func TestEveryCounterIsExplained(t *testing.T) {
	explained := map[string]string{}
	for _, e := range verdict.Explanations() {
		explained[e.Role+" "+e.Name] = e.Meaning
	}
	for role, program := range map[string][2]string{"lb": {"../lb/lb_bpfel.o", "verdict"}, "agent": {"../server/server_bpfel.o", "agent_verdict"}} {
		spec, err := ebpf.LoadCollectionSpec(program[0])
		if err != nil {
			t.Fatal(err)
		}
		names, err := verdict.Names(spec.Types, program[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names[1 : len(names)-1] { // without what is not decided, and the number of verdicts
			if explained[role+" "+name] == "" {
				t.Errorf("%s of %s has no comment that explains it: NAME, /* meaning. Worry: when */", name, role)
			}
			delete(explained, role+" "+name)
		}
	}
	if len(explained) > 0 {
		t.Errorf("no program counts %v", explained)
	}
}
