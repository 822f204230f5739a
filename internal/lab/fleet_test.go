package lab

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestFleetsOfScenariosAreValid(t *testing.T) {
	topology := Topology{Servers: make([]ServerNode, 3)}
	udp := &service{Name: "echo", VIP: vip6, Protocol: "udp", Ports: []uint16{4000}}
	cross := cookieService(vip4)
	cross.Forward, cross.crossFamily = "gue", true
	table := tableService(vip4, serviceTable{Entries: 1024, IdleTimeout: tableIdle.String(), PacketLimit: policyLimit, Scrubber: serverName(3)})
	for _, one := range append(elasticPolicies(), table, localService(vip4), tableService(vip6, serviceTable{}), controlService(), policyService(vip4, "awfd"),
		cookieService(vip4), cookieService(vip6), hashService(vip4), throughService("nat"), throughService("l2"), udp, cross,
	) {
		changing := &trial{Lab: &Lab{topo: topology}, fleet: newFleet(newRandom(1), one), random: newRandom(2), agents: map[string]*daemon{}}
		for i := 1; i <= 3; i++ {
			changing.addServer(i)
		}
		one.drain(1)
		changing.removeServer(2)
		changing.addKey(2)
		content, err := changing.fleet.encode()
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := config.Parse("lab.yaml", content)
		if err != nil {
			t.Errorf("%v in\n%s", err, content)
			continue
		}
		if servers := parsed.Services[0].Servers; len(servers) != 2 || servers[0].State != model.StateDraining || servers[1].ID != 3 {
			t.Errorf("servers %+v of\n%s", servers, content)
		}
	}
}

func TestFleetsOfTwoTiersAreValid(t *testing.T) {
	changing := &trial{
		Lab: &Lab{topo: Topology{LBs: 2, Second: 3, Servers: make([]ServerNode, 3)}}, setup: setup{second: []int{1, 2, 3}},
		fleet: newFleet(newRandom(1), tableService(vip4, serviceTable{})), agents: map[string]*daemon{}, second: map[string]*daemon{},
	}
	changing.addServer(1)
	changing.divideTiers()
	changing.drainSecond(1)
	changing.removeSecond(2)
	content, err := changing.fleet.encode()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := config.Parse("lab.yaml", content)
	if err != nil {
		t.Fatalf("%v in\n%s", err, content)
	}
	first, drained, last := parsed.Node("lb1"), parsed.Node("second1"), parsed.Node("second3")
	if len(parsed.Nodes) != 4 || first.Tier != model.TierFirst || drained.State != model.StateDraining || last.ID != 3 || last.Tier != model.TierSecond {
		t.Errorf("nodes %+v of\n%s", parsed.Nodes, content)
	}
}
