package agent

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// A service that got a port of another one remembers the other's ids of servers that it has itself.
func TestAServerThatIsRememberedByAnotherIDIsThisHostOnce(t *testing.T) {
	server := func(name string, id uint16, address string) model.Server {
		s := model.NewServer()
		s.Name, s.ID, s.Address = name, id, netip.MustParseAddr(address)
		return s
	}
	service := model.NewService()
	service.Name, service.VIP, service.Ports = "b", netip.MustParseAddr("198.51.100.1"), []uint16{80}
	service.Servers = []model.Server{server("s1", 3, "10.0.0.1"), server("s2", 4, "10.0.0.2")}
	d := desired{node: node.Node{
		Running: model.Fleet{Services: []model.Service{service}},
		Removed: []node.Removed{{Service: "b", Server: server("s1", 1, "10.0.0.1")}, {Service: "b", Server: server("s9", 9, "10.0.0.9")}},
	}}
	file := d.file("the test")
	var ids []uint16
	for _, s := range file.Fleet.Services[0].Servers {
		ids = append(ids, s.ID)
	}
	if !slices.Equal(ids, []uint16{3, 4, 9}) {
		t.Errorf("it is told of the servers %v", ids)
	}
	file.Fleet.ApplyDefaults()
	if _, err := plan.NewAgent(&file.Fleet, func(s *model.Server) bool { return s.Address == netip.MustParseAddr("10.0.0.1") }); err != nil {
		t.Error(err)
	}
}
