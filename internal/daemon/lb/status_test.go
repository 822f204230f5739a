package lb

import (
	"fmt"
	"math"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/pathmtu"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestThePathMTUsOfManyServersAreToldInFewWords(t *testing.T) {
	for _, test := range []struct{ servers, others, most, told int }{
		{0, 0, 0, 0}, {1000, 0, 1500, 0}, {1000, 1, 1500, 1}, {1000, pathmtu.OthersMax, 1500, pathmtu.OthersMax},
		{1000, pathmtu.OthersMax + 1, 0, pathmtu.OthersMax}, // and nothing is said of the rest
		{1, 1, 1400, 1},
	} {
		service := model.Service{Name: "web"}
		now := &dataplane.Snapshot{State: &desired.State{}, Paths: map[netip.Addr]plan.Path{}}
		for i := range test.servers + test.others {
			address := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
			service.Servers = append(service.Servers, model.Server{Name: fmt.Sprint("s", i), Address: address, ID: uint16(i + 1), Weight: 1})
			path := plan.Path{MTU: 1500}
			if i >= test.servers {
				path.MTU = 1400
			}
			now.Paths[address] = path
		}
		now.State.Desired = fleet.Desired{Running: model.Fleet{Services: []model.Service{service}}}
		if told := pathMTUs(now); int(told.Most) != test.most || len(told.Others) != test.told {
			t.Errorf("%+v: most %d, %d others", test, told.Most, len(told.Others))
		}
	}
}

// What a load balancer gives to its own host crosses no device, whatever those can take.
func TestServersOfThisHostHaveNoPathMTU(t *testing.T) {
	own, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	service := model.Service{Name: "web", Servers: []model.Server{{Name: "s1", Address: own, ID: 1, Weight: 1}, {Name: "s2", Address: other, ID: 2, Weight: 1}}}
	now := &dataplane.Snapshot{State: &desired.State{}, Paths: map[netip.Addr]plan.Path{own: {Here: true, Source: own, MTU: math.MaxUint16}, other: {MTU: 1500}}}
	now.State.Desired = fleet.Desired{Running: model.Fleet{Services: []model.Service{service}}}
	sent := pathMTUs(now)
	if here, said := sent.Others[own.String()]; sent.Most != 1500 || !said || here != 0 || len(sent.Others) != 1 {
		t.Errorf("%+v", sent)
	}
}
