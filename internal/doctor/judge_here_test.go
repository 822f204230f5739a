package doctor

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

func TestAServerOnThisHostIsJudgedByItsService(t *testing.T) {
	s := model.NewService()
	s.Name, s.Servers = "web", []model.Server{{Name: "s1", ID: 1}}
	s.ApplyDefaults()
	path := pathFacts{MTU: 65535, Here: true}
	if found := judgePath(&s, &s.Servers[0], path); len(found) > 0 {
		t.Errorf("by ipip: %+v", found)
	}
	s.Forward = model.ForwardNAT
	if found := judgePath(&s, &s.Servers[0], path); len(found) != 1 || found[0].Severity != Problem {
		t.Errorf("by nat: %+v", found)
	}
}

// The other role's program is no obstacle, whoever comes first.
func TestTheProgramOfTheOtherRoleIsNoObstacle(t *testing.T) {
	for _, d := range []deviceFacts{
		{Instance: "other", OtherRole: true}, {Instance: "other", OtherRole: true, Behind: true}, {Instance: "other"},
	} {
		for _, role := range []Role{RoleLB, RoleAgent} {
			d.Device.XDPProgram = 7
			found := judgeAttachment(&facts{Role: role}, &d)
			if want := map[bool]Severity{true: OK, false: Problem}[d.OtherRole]; found.Severity != want {
				t.Errorf("%s, %+v: %+v", role, d, found)
			}
		}
	}
}
