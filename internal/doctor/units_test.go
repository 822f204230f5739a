package doctor

import "testing"

func TestAUnitThatDoesNotStayUpIsToldFromOneThatWasStopped(t *testing.T) {
	for text, fails := range map[string]bool{
		"ActiveState=active\nSubState=running\nNRestarts=3\n":            false,
		"ActiveState=inactive\nSubState=dead\nNRestarts=3\n":             false,
		"ActiveState=activating\nSubState=start\nNRestarts=0\n":          false, // the first start
		"ActiveState=activating\nSubState=start\nNRestarts=3\n":          true,
		"ActiveState=activating\nSubState=auto-restart\nNRestarts=0\n":   true,
		"ActiveState=failed\nSubState=failed\nNRestarts=0\n":             true,
		"ActiveState=deactivating\nSubState=stop-sigterm\nNRestarts=2\n": false, // somebody stops it
		"": false,
	} {
		if _, have := parseUnit(text); have != fails {
			t.Errorf("%q fails: %v", text, have)
		}
	}
	if restarts, _ := parseUnit("NRestarts=12\nActiveState=failed\n"); restarts != 12 {
		t.Errorf("%d restarts", restarts)
	}
}

func TestTheRoleIsThatOfTheOneUnitThatFails(t *testing.T) {
	for _, c := range []struct {
		units []unitFacts
		role  Role
	}{
		{nil, RoleUnknown},
		{[]unitFacts{{Role: RoleLB, Instance: "default"}}, RoleLB},
		{[]unitFacts{{Role: RoleLB, Instance: "edge"}}, RoleUnknown},
		{[]unitFacts{{Role: RoleController}, {Role: RoleAgent, Instance: "default"}}, RoleAgent},
		{[]unitFacts{{Role: RoleLB, Instance: "default"}, {Role: RoleAgent, Instance: "default"}}, RoleUnknown},
	} {
		if have := chooseRole(RoleAuto, &facts{Instance: "default", Units: c.units}); have != c.role {
			t.Errorf("%v: %q", c.units, have)
		}
	}
}

func TestTheJournalSaysWhyADaemonEnded(t *testing.T) {
	for journal, want := range map[string]string{
		"": "",
		"time=1 level=INFO msg=attached\nballast: find interface eth9: no such\n":      "ballast: find interface eth9: no such",
		"ballast: a.yaml:1: x\na.yaml:2: y\ntime=2 level=INFO msg=\"a new attempt\"\n": "ballast: a.yaml:1: x; a.yaml:2: y",
		"panic: nil map\ngoroutine 1 [running]:\nmain.main()\n":                        "it crashed: panic: nil map",
		"SIGABRT: abort\ngoroutine 1 [running]:\n":                                     "it crashed: SIGABRT: abort",
		"time=1 level=ERROR msg=alone\n":                                               "time=1 level=ERROR msg=alone",
	} {
		if have := lastReason(journal); have != want {
			t.Errorf("%q: %q", journal, have)
		}
	}
	for text, want := range map[string]string{"": "default", "SOURCE=-f x\nINSTANCE=edge\n": "edge", `INSTANCE="edge"`: "edge", "#INSTANCE=x": "default"} {
		if have := instanceOf(RoleLB, text); have != want {
			t.Errorf("%q: %q", text, have)
		}
	}
}
