package server

import (
	"os"
	"testing"

	"github.com/ballast-lb/ballast/internal/plan"
)

// What was served stands before nothing that is: a range or a port that is within what is served now has its row.
func TestPortsThatBecomePartOfARangeAreServedAsIt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s, err := Open("", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key := func(first, last uint16) plan.VIPKey {
		return plan.VIPKey{PortKey: plan.PortKey{Address: [16]byte{198, 51, 100, 10}, Port: [2]byte{byte(first >> 8), byte(first)}, Protocol: 6}, Last: last}
	}
	row := func(id uint16) plan.AgentRow {
		return plan.AgentRow{ID: id, Flags: plan.AgentCookie, CookieBits: 14, IDBits: 13}
	}
	for _, step := range []struct{ served, want map[plan.VIPKey]uint16 }{
		{map[plan.VIPKey]uint16{key(1000, 2000): 1, key(80, 0): 1}, nil},
		{map[plan.VIPKey]uint16{key(0, 65535): 1}, map[plan.VIPKey]uint16{key(1000, 2000): 1, key(80, 0): 1}},
		{map[plan.VIPKey]uint16{key(0, 65535): 3, key(50, 90): 2}, map[plan.VIPKey]uint16{key(1000, 2000): 3, key(80, 0): 2}},
		{map[plan.VIPKey]uint16{key(80, 0): 2}, nil},
	} {
		served := map[plan.VIPKey]plan.AgentRow{}
		for key, id := range step.served {
			served[key] = row(id)
		}
		if _, err := s.Serve(served); err != nil {
			t.Fatal(err)
		}
		for key, id := range step.want {
			if have := s.rows[key].row; have != row(id) {
				t.Errorf("with %v ports %s have the row %+v", step.served, key.Ports(), have)
			}
		}
	}
}
