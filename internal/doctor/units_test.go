package doctor

import (
	"strings"
	"testing"
)

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
		if _, have, _ := parseUnit(text); have != fails {
			t.Errorf("%q fails: %v", text, have)
		}
	}
	if restarts, _, enabled := parseUnit("NRestarts=12\nActiveState=failed\nUnitFileState=enabled\n"); restarts != 12 || !enabled {
		t.Errorf("%d restarts, enabled %v", restarts, enabled)
	}
}

func TestTheRoleIsThatOfTheOneUnitThatFails(t *testing.T) {
	for _, c := range []struct {
		units []unitFacts
		role  Role
	}{
		{nil, RoleUnknown},
		{[]unitFacts{{Role: RoleLB, Fails: true, Instance: "default"}}, RoleLB},
		{[]unitFacts{{Role: RoleLB, Fails: true, Instance: "edge"}}, RoleUnknown},
		{[]unitFacts{{Role: RoleAgent, Expected: true, Instance: "default"}, {Role: RoleLB, Expected: true, Instance: "edge"}}, RoleAgent},
		{[]unitFacts{{Role: RoleAgent, Expected: true, Instance: "default"}, {Role: RoleLB, Expected: true, Instance: "default"}}, RoleUnknown},
		{[]unitFacts{{Role: RoleController}, {Role: RoleAgent, Fails: true, Instance: "default"}}, RoleAgent},
		{[]unitFacts{{Role: RoleLB, Fails: true, Instance: "default"}, {Role: RoleAgent, Fails: true, Instance: "default"}}, RoleUnknown},
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
	for text, want := range map[string]string{
		"":                                  "",
		`OPTIONS="--data-dir /d --name c1"`: "c1",
		`OPTIONS="--name=c2 --x 1"`:         "c2",
	} {
		if have := instanceOf(RoleController, text); have != want {
			t.Errorf("%q: %q", text, have)
		}
	}
}

// A unit that starts with the machine is missed, whether its daemon ever came up or not.
func TestADaemonWhoseUnitIsEnabledIsMissed(t *testing.T) {
	f := &facts{Instance: "agent", Role: RoleAgent, Units: []unitFacts{{Role: RoleAgent, Instance: "agent", Expected: true}}}
	findings := judgeDaemon(f)
	if len(findings) != 1 || findings[0].Severity != Problem || !strings.Contains(findings[0].Found, "its unit is enabled") {
		t.Errorf("%+v", findings)
	}
	f.Instance = "other"
	if findings := judgeDaemon(f); len(findings) != 1 || findings[0].Severity != Warning {
		t.Errorf("%+v", findings)
	}
	_, findings = examine(t.Context(), Options{Instance: "c1", RunDir: t.TempDir()}, daemonFacts{}, []unitFacts{{Role: RoleController, Instance: "c1", Expected: true}})
	if len(findings) != 1 || findings[0].Severity != Problem || !strings.Contains(findings[0].Remedy, "ballast-controller") {
		t.Errorf("%+v", findings)
	}
}
