package ctl_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// readers are the commands that show what a method of the fleet API reads.
var readers = map[string][]string{
	"GetFleet":        {"fleet", "services"},
	"ListServers":     {"servers", "servers web"},
	"ListKeys":        {"keys"},
	"ListChanges":     {"history"},
	"ListNodes":       {"nodes"},
	"ListReplicas":    {"replicas"},
	"ListTicketKeys":  {"tickets"},
	"ListRevocations": {"pki list"},

	"ListExplanations": {"explain 203.0.113.7:1 198.51.100.10:443"},
}

func TestWhoeverReadsWhatMayBeOldIsWarned(t *testing.T) {
	methods := ballastv1.File_ballast_proto.Services().ByName("Fleet").Methods()
	for i := range methods.Len() {
		method := methods.Get(i)
		if changes := method.Output().Name(); changes != "ChangeResponse" && changes != "AddKeyResponse" && readers[string(method.Name())] == nil {
			t.Errorf("no command is known here that shows what %s reads", method.Name())
		}
	}
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.must("apply", "-f", write(t, fleetFile), "--yes")
		ctl.memory.Explanations = []*ballastv1.Explanation{{Node: "lb1", Verdict: "forwarded_new"}}
		ctl.memory.Stale = errors.New("no leader")
		const warning = "warning: this may not be the newest state: no leader\n"
		for _, commands := range readers {
			for _, command := range commands {
				if shown := ctl.must(strings.Fields(command)...); strings.Count(shown, warning) != 1 {
					t.Errorf("%s: %s", command, shown)
				}
				if shown, warned := strings.CutPrefix(ctl.must(strings.Fields(command+" --json")...), warning); !warned || !json.Valid([]byte(shown)) {
					t.Errorf("%s --json: warned %v: %s", command, warned, shown)
				}
			}
		}
		ctl.memory.Stale = nil
		if shown := ctl.must("servers"); strings.Contains(shown, "warning") {
			t.Errorf("confirmed: %s", shown)
		}
	})
}
