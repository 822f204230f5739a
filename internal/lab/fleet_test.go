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
	for _, one := range append(elasticPolicies(), controlService(), policyService(vip4, "awfd"),
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
