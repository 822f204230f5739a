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
		"ActiveState=deactivating\nSubState=stop-sigterm\nNRestarts=2\n": true,
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
		{[]unitFacts{{Role: RoleLB}}, RoleLB},
		{[]unitFacts{{Role: RoleController}, {Role: RoleAgent}}, RoleAgent},
		{[]unitFacts{{Role: RoleLB}, {Role: RoleAgent}}, RoleUnknown},
	} {
		if have := chooseRole(RoleAuto, &facts{Units: c.units}); have != c.role {
			t.Errorf("%v: %q", c.units, have)
		}
	}
}
