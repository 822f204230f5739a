package plan

import (
	"fmt"
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
		model.AffinityCookie: {Flags: AgentCookie | AgentTakes, CookieBits: 14, IDBits: 13},
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
// What an agent begins with is compared with what an earlier process has published.
func TestAnAgentTellsAnotherFleetFromItsOwn(t *testing.T) {
	served := func(fleet *model.Fleet, id uint16, have map[VIPKey]AgentRow) *Agent {
		t.Helper()
		agent, err := NewAgent(fleet, isServer(id))
		if err != nil {
			t.Fatal(err)
		}
		agent.Rekey(fleet, have)
		return &agent
	}
	have := served(agentFleet(model.AffinityCookie), 2, nil).Served
	at := func(vip netip.Addr, keys model.Keys) *model.Fleet {
		fleet := agentFleet(model.AffinityCookie)
		fleet.Services[0].VIP, fleet.Keys = vip, keys
		return fleet
	}
	own, others := testKeys(1), testKeys(1)
	others.Cookie = map[uint32][16]byte{1: {0xee}}
	retired := map[VIPKey]AgentRow{}
	for key, row := range have {
		retired[key] = row.Retired()
	}
	for what, c := range map[string]struct {
		fleet        *model.Fleet
		id           uint16
		have         map[VIPKey]AgentRow
		knows, keeps bool
	}{
		"the same":           {at(vipAt(0), own), 2, have, true, true},
		"no server any more": {at(vipAt(0), own), 99, have, true, true},
		"no server any more, and the key has changed": {at(vipAt(0), others), 99, have, true, false},
		"another VIP":                   {at(vipAt(1), own), 2, have, true, true},
		"another fleet":                 {at(vipAt(1), others), 2, have, false, true},
		"another fleet, nothing served": {at(vipAt(1), others), 2, nil, true, true},
		"what was served was retired, and it is back after rotations": {at(vipAt(0), others), 2, retired, true, true},
		"what was served was retired with its service":                {at(vipAt(1), others), 99, retired, true, true},
	} {
		agent := served(c.fleet, c.id, c.have)
		if knows, err := agent.Knows(c.fleet, c.have), agent.Keeps(c.fleet, c.have); knows != c.knows || (err == nil) != c.keeps {
			t.Errorf("%s: knows it %t, %v", what, knows, err)
		}
	}
}

func TestScrubbersKnowTheWayToEveryServer(t *testing.T) {
	agent, err := NewAgent(agentFleet(model.AffinityTable), isServer(3))
	if err != nil {
		t.Fatal(err)
	}
	if want := []netip.Addr{testServer(1).Address, testServer(2).Address}; !slices.Equal(agent.Stops, want) {
		t.Errorf("stops %v, want %v", agent.Stops, want)
	}
}

// choicesFleet has services of the numbers of ports given, with dispatch choices.
func choicesFleet(ports ...[]uint16) *model.Fleet {
	fleet := &model.Fleet{Keys: testKeys(1)}
	for _, of := range ports {
		s := testService(fmt.Sprintf("s%d", of[0]), vipAt(0), 1, 2, 3).Service
		s.Ports, s.Affinity, s.CookieBits, s.Dispatch, s.Servers[2].Weight = of, model.AffinityCookie, 14, model.DispatchChoices, 0
		s.Choices = model.Choices{Candidates: 2, History: 3, Accept: model.Accept{Load: model.AcceptByCPU, Threshold: 7, Window: 50, Margin: 10}}
		fleet.Services = append(fleet.Services, s)
	}
	return fleet
}

func TestAgentsKnowWhenToAccept(t *testing.T) {
	key := vipKey(vipAt(0), 80, uint8(model.ProtocolTCP))
	for id, flags := range map[uint16]uint8{1: AgentCookie | AgentChoices, 2: AgentCookie | AgentChoices | AgentNoNew, 3: AgentCookie | AgentChoices | AgentNoNew} {
		fleet := choicesFleet([]uint16{80})
		fleet.Services[0].Servers[1].State = model.StateDraining
		agent, err := NewAgent(fleet, isServer(id))
		if err != nil {
			t.Fatal(err)
		}
		agent.Place(nil)
		row := agent.Served[key]
		if row.Flags != flags || row.Acceptance != 1 || row.Policy != uint8(model.AcceptDynamic) || row.Load != uint8(model.AcceptByCPU) || row.Threshold != 7 ||
			row.Window != 50 || row.Low != 20 || row.High != 30 {
			t.Errorf("server %d: %+v", id, row)
		}
		if c := agent.Choices[0]; c.Service != &fleet.Services[0] || c.Server != &fleet.Services[0].Servers[id-1] || c.Acceptance != 1 {
			t.Errorf("server %d: %+v", id, c)
		}
		if retired := row.Retired(); retired.Flags != AgentRetired || retired.Acceptance != 0 || retired.Load != 0 || retired.ID != id {
			t.Errorf("what server %d leaves behind: %+v", id, retired)
		}
	}
}

// What is known of a service, its connections and its limit, is where it was: whatever other services there are, and whatever its other ports.
func TestServicesKeepTheirPlacesAmongAcceptances(t *testing.T) {
	have := map[VIPKey]AgentRow{}
	place := func(ports ...[]uint16) (places []uint16) {
		t.Helper()
		agent, err := NewAgent(choicesFleet(ports...), isServer(1))
		if err != nil {
			t.Fatal(err)
		}
		agent.Rekey(choicesFleet(ports...), have)
		agent.Place(have)
		for _, c := range agent.Choices {
			for _, port := range c.Service.Ports {
				if row := agent.Served[vipKey(vipAt(0), port, uint8(model.ProtocolTCP))]; row.Acceptance != c.Acceptance {
					t.Errorf("port %d has %d, its service %d", port, row.Acceptance, c.Acceptance)
				}
			}
			places = append(places, c.Acceptance)
		}
		have = agent.Served
		return places
	}
	for _, step := range []struct {
		ports [][]uint16
		want  []uint16
	}{
		{[][]uint16{{80, 81}, {90}}, []uint16{1, 2}},
		{[][]uint16{{70}, {90}, {80, 81}}, []uint16{3, 2, 1}},
		{[][]uint16{{90}, {80, 81}}, []uint16{2, 1}},
		{[][]uint16{{81}, {80}, {90}}, []uint16{1, 3, 2}}, // split
		{[][]uint16{{90, 80, 81}}, []uint16{2}},           // merged
		{[][]uint16{{100}, {90, 80, 81}}, []uint16{1, 2}},
	} {
		if have := place(step.ports...); !slices.Equal(have, step.want) {
			t.Errorf("ports %v have the places %d, want %d", step.ports, have, step.want)
		}
	}
}
