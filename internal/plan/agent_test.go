package plan

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// agentFleet has one service of three servers; the third takes no new connections.
func agentFleet(affinity model.Affinity) *model.Fleet {
	s := testService("web", vipAt(0), 1, 2, 3).Service
	s.Affinity, s.CookieBits, s.Servers[2].Weight = affinity, 14, 0
	if affinity == model.AffinityTable {
		s.Table.IndexBits = 6
	}
	return &model.Fleet{Keys: testKeys(1), Services: []model.Service{s}}
}

func isServer(id uint16) func(*model.Server) bool {
	return func(s *model.Server) bool { return s.ID == id }
}

func TestAgentsKnowWhereInTheCookieTheirIDIs(t *testing.T) {
	for affinity, want := range map[model.Affinity]AgentRow{
		model.AffinityCookie: {Flags: AgentCookie, CookieBits: 14, IDBits: 13},
		model.AffinityTable:  {Flags: AgentCookie, CookieBits: 14, IDBits: 7},
		model.AffinityLocal:  {},
		model.AffinityHash:   {},
	} {
		fleet := agentFleet(affinity)
		agent, err := NewAgent(fleet, isServer(2))
		if err != nil {
			t.Fatal(err)
		}
		row := agent.Served[vipKey(vipAt(0), 80, uint8(model.ProtocolTCP))]
		if row.Flags != want.Flags || row.CookieBits != want.CookieBits || row.IDBits != want.IDBits || row.ID != 2 {
			t.Errorf("affinity %s: %+v", affinity, row)
		}
		if marks := len(agent.Marking) > 0; marks != affinity.Cookies() {
			t.Errorf("affinity %s: marks %t", affinity, marks)
		}
	}
}

// Connections that a server left behind are still found by its id, and load balancers put tags into them.
func TestRetiredRowsFollowTheirServiceToATable(t *testing.T) {
	before, err := NewAgent(agentFleet(model.AffinityCookie), isServer(2))
	if err != nil {
		t.Fatal(err)
	}
	fleet := agentFleet(model.AffinityTable)
	agent, err := NewAgent(fleet, isServer(99))
	if err != nil {
		t.Fatal(err)
	}
	agent.Rekey(fleet, before.Served)
	row := agent.Served[vipKey(vipAt(0), 80, uint8(model.ProtocolTCP))]
	if row.Flags != AgentRetired || row.IDBits != 7 || row.ID != 2 {
		t.Errorf("%+v", row)
	}
}

// A scrubber sends on what is not its own: its agent must know the way to every server of the service.
func TestScrubbersKnowTheWayToEveryServer(t *testing.T) {
	agent, err := NewAgent(agentFleet(model.AffinityTable), isServer(3))
	if err != nil {
		t.Fatal(err)
	}
	if want := []netip.Addr{testServer(1).Address, testServer(2).Address}; !slices.Equal(agent.Stops, want) {
		t.Errorf("stops %v, want %v", agent.Stops, want)
	}
}
