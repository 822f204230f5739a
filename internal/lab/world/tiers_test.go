package world

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestFleetsOfTwoTiersAreValid(t *testing.T) {
	service := fleet.NewService("web", vipA)
	service.Affinity = model.AffinityTable
	changing := Prepare(&host.Lab{}, Setup{
		Topology: Topology{LBs: 2, Second: 3, Servers: make([]ServerNode, 3)}, Services: []*fleet.Service{service}, Members: []int{1}, Second: []int{1, 2, 3},
	})
	changing.Pool.compose(changing.Lab, &changing.Setup)
	changing.Pool.DrainSecond(1)
	changing.Pool.RemoveSecond(2)
	content, err := changing.Fleet.Encode()
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
