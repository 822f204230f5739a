package scenario

import (
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestFleetsOfScenariosAreValid(t *testing.T) {
	topology := world.Topology{Servers: make([]world.ServerNode, 3)}
	udp := fleet.NewService("echo", VIP6)
	udp.Protocol = model.ProtocolUDP
	cross := CookieService(VIP4)
	cross.Forward, cross.CrossFamily = model.ForwardGUE, true
	table := TableService(VIP4, model.Table{Entries: 1024, IdleTimeout: model.Duration(5 * time.Second), PacketLimit: 250, Scrubber: world.ServerName(3)})
	for _, one := range append(ElasticPolicies(), table, LocalService(VIP4), TableService(VIP6, model.Table{}), ControlService(), PolicyService(VIP4, model.DispatchAWFD),
		CookieService(VIP4), CookieService(VIP6), HashService(VIP4), ThroughService(model.ForwardNAT), ThroughService(model.ForwardL2), udp, cross,
	) {
		changing := world.Prepare(&host.Lab{}, world.Setup{Topology: topology, Services: []*fleet.Service{one}})
		for i := 1; i <= 3; i++ {
			changing.Pool.AddServer(i)
		}
		one.Drain(1)
		changing.Pool.RemoveServer(2)
		changing.Pool.AddKey(2)
		content, err := changing.Fleet.Encode()
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
