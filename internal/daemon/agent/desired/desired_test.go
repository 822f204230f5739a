package desired

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/daemon/agent/serving"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Whatever address or name a removed server had, one that is there is this host; of several removed ones, one is.
//
// Promise: A server that gets another address of its host, or that of a removed one, is kept once the old entry is
// removed.
func TestRemovedServersGiveWayToTheOneThatIsThisHost(t *testing.T) {
	server := func(name string, id uint16, address string) model.Server {
		s := model.NewServer()
		s.Name, s.ID, s.Address = name, id, netip.MustParseAddr(address)
		return s
	}
	local := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.12")}
	other := server("s2", 4, "10.0.0.2")
	for name, test := range map[string]struct {
		option  string // --server
		servers []model.Server
		removed []model.Server
		want    uint16
	}{
		"the same address by another id": {"", []model.Server{other, server("s1", 3, "10.0.0.1")}, []model.Server{server("s1", 1, "10.0.0.1")}, 3},
		"another address of the host":    {"", []model.Server{other, server("s1", 3, "10.0.0.11")}, []model.Server{server("s1", 1, "10.0.0.1")}, 3},
		"an address of another machine":  {"", []model.Server{other, server("s1", 3, "10.0.0.1")}, []model.Server{server("s9", 9, "10.0.0.12")}, 3},
		"the same name":                  {"s1", []model.Server{other, server("s1", 3, "10.0.0.1")}, []model.Server{server("s1", 1, "10.0.0.9")}, 3},
		"several, and none is there":     {"", []model.Server{other}, []model.Server{server("s1", 1, "10.0.0.1"), server("s9", 9, "10.0.0.12")}, 9},
	} {
		t.Run(name, func(t *testing.T) {
			service := model.NewService()
			service.Name, service.VIP, service.Ports, service.Servers = "b", netip.MustParseAddr("198.51.100.1"), []uint16{80}, test.servers
			d := State{Node: fleet.Desired{Running: model.Fleet{Services: []model.Service{service}}}}
			for _, s := range test.removed {
				d.Node.Removed = append(d.Node.Removed, fleet.Removed{Service: "b", Server: s})
			}
			if gone, left := test.want == 9 || test.removed[0].ID == test.want, d.Left(serving.Mine(test.option, local)); gone != slices.Equal(left, []string{"b"}) || !gone && left != nil {
				t.Errorf("it has left %q", left)
			}
			file := d.File("the test")
			file.Fleet.ApplyDefaults()
			wanted, err := plan.NewAgent(&file.Fleet, serving.Mine(test.option, local))
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range wanted.Served {
				if row.Flags != 0 && row.ID != test.want {
					t.Errorf("it serves by id %d, want %d", row.ID, test.want)
				}
			}
			for _, s := range append(test.servers, test.removed...) {
				if !slices.Contains(append(wanted.Stops, wanted.Addresses...), s.Address) {
					t.Errorf("it does not know the way to %s", s.Name)
				}
			}
		})
	}
}
