// The data path of the one load balancer that has it.
package control

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// tables are plan and maps of a data path that is attached to nothing.
type tables struct {
	path     *lb.LB
	plan     *plan.Tables
	keys     model.Keys
	services map[string]plan.Service
	soft     map[string]*follow.Weights
}

// limitsOf has room for all that is measured, old and new side by side.
func limitsOf(f *fleetOfPeers) plan.Limits {
	const idSpan = 256 // of ids that a service takes at once
	services := uint32(f.Services + 8)
	servers := uint32(f.Agents + f.Events + f.Services*f.ServersEach)
	return plan.Limits{Services: services, Servers: 2 * servers, ServerIDs: 4*servers + 2*idSpan*services, Slots: (services + 8) * (model.DefaultSlots + 3), Rounds: 1<<16 + 8*servers}
}

func openTables(f *fleetOfPeers) (*tables, error) {
	limits := limitsOf(f)
	path, err := lb.Open("", limits)
	if err != nil {
		return nil, fmt.Errorf("open the maps of a load balancer: %w: run as root, or without --maps", err)
	}
	return &tables{path: path, plan: plan.NewTables(limits), services: map[string]plan.Service{}, soft: map[string]*follow.Weights{}}, nil
}

func (t *tables) close() { t.path.Close() }

// anyPath is how every server is reached here.
func anyPath() plan.Path {
	return plan.Path{Ifindex: 1, Source: netip.MustParseAddr("192.0.2.1"), SourceMAC: [6]byte{2, 0, 0, 0, 0, 1}, DestinationMAC: [6]byte{2, 0, 0, 0, 0, 2}, MTU: 1500}
}

// want is all that the tables should say.
func (t *tables) want() *plan.Want {
	want := &plan.Want{Keys: t.keys, Paths: map[netip.Addr]plan.Path{}}
	for _, name := range slices.Sorted(maps.Keys(t.services)) {
		s := t.services[name]
		if soft := t.soft[name]; soft != nil {
			s.Weights = soft.Values
		}
		for i := range s.Servers {
			want.Paths[s.Servers[i].Address] = anyPath()
		}
		want.Services = append(want.Services, s)
	}
	return want
}

// take makes the maps say what a state says.
func (t *tables) take(state *ballastv1.State) error {
	if state.Complete {
		clear(t.services)
	}
	for _, name := range state.Gone {
		delete(t.services, name)
	}
	var list []*ballastv1.Service
	for _, s := range state.Services {
		list = append(list, s.Service)
	}
	fleet, err := api.FleetFromProto(&ballastv1.ApplyRequest{Services: list}, state.Keys)
	if err != nil {
		return err
	}
	if state.Keys != nil {
		t.keys = fleet.Keys
	}
	fleet.ApplyDefaults()
	for i := range fleet.Services {
		t.services[fleet.Services[i].Name] = plan.Service{Service: fleet.Services[i]}
	}
	_, _, err = t.update()
	return err
}

// update returns how long it took to plan and to write.
func (t *tables) update() (planned, written time.Duration, err error) {
	want := t.want()
	began := time.Now()
	changes, err := t.plan.Update(want)
	planned = time.Since(began)
	if err != nil {
		return planned, 0, err
	}
	if t.path != nil {
		began = time.Now()
		err = t.path.Apply(changes)
		written = time.Since(began)
	}
	return planned, written, err
}

// reweigh writes an update of weights.
func (t *tables) reweigh(service string, update *follow.Update) error {
	soft := t.soft[service]
	if soft == nil {
		soft = &follow.Weights{}
		t.soft[service] = soft
	}
	if _, changed := soft.Merge(update); !changed {
		return nil
	}
	changes, err := t.plan.Reweigh(service, soft.Values, nil)
	if err != nil {
		return err
	}
	return t.path.Apply(changes)
}

// planAlone plans, and writes where there are maps, many services at once.
func planAlone(f *fleetOfPeers) (planned, written time.Duration, err error) {
	t := &tables{plan: plan.NewTables(limitsOf(f)), services: map[string]plan.Service{}}
	if f.Maps {
		if t, err = openTables(f); err != nil {
			return 0, 0, err
		}
		defer t.close()
	}
	fleet, err := api.FleetFromProto(&ballastv1.ApplyRequest{Services: massServices(f.Services, f.ServersEach)}, nil)
	if err != nil {
		return 0, 0, err
	}
	fleet.Keys = model.Keys{Current: 1, Cookie: map[uint32][16]byte{1: {1}}}
	fleet.ApplyDefaults()
	t.keys = fleet.Keys
	for i := range fleet.Services {
		t.services[fleet.Services[i].Name] = plan.Service{Service: fleet.Services[i]}
	}
	return t.update()
}
