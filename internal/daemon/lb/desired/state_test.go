package desired

import (
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

func example() *State {
	s := &State{Self: "lb1"}
	s.Running.Services = []model.Service{{Name: "web", Servers: []model.Server{{Name: "s1", ID: 1, Weight: 1}, {Name: "s2", ID: 2, Weight: 1}}}}
	s.Removed = []fleet.Removed{{Service: "web", Server: model.Server{Name: "s3", ID: 3}}}
	s.Unhealthy = map[string]fleet.Unhealthy{"web": {Down: []uint16{1}, Cut: []uint16{1}}}
	return s
}

// Snapshots of it are read without a lock.
func TestAStateStaysAsItIsWhateverIsMadeOfIt(t *testing.T) {
	s := example()
	other := s.WithUnhealthy(map[string]fleet.Unhealthy{"web": {}, "dns": {Down: []uint16{7}}})
	if other.DownOf("web")[1] || !other.DownOf("dns")[7] || len(other.Unhealthy) != 1 {
		t.Errorf("the other state has %v", other.Unhealthy)
	}
	edited := s.Editable()
	edited.Age(time.Unix(1e6, 0), fleet.DefaultTiming, func(string, uint16) uint64 { return 5 })
	if _, err := edited.Forget("web", "s3"); err != nil {
		t.Fatal(err)
	}
	s.With(edited)
	s.Services()
	if !reflect.DeepEqual(s, example()) {
		t.Errorf("it became %+v", s)
	}
}

func TestWhoIsUnhealthyOfAStateThatKnewNobodyUnhealthy(t *testing.T) {
	s := (&State{}).WithUnhealthy(map[string]fleet.Unhealthy{"web": {Down: []uint16{1}}})
	if !s.DownOf("web")[1] {
		t.Errorf("unhealthy are %v", s.Unhealthy)
	}
}

func TestServersWhoseConnectionsAreCutAreOffInTheTables(t *testing.T) {
	for _, server := range example().Services()[0].Servers {
		if want := server.ID == 1; (server.State == model.StateOff) != want {
			t.Errorf("%s is %s", server.Name, server.State)
		}
	}
}

func TestAServiceThatNobodyIsToOpenConnectionsToIsNoProblem(t *testing.T) {
	s := &State{}
	nat := func(weight uint16) []model.Server { return []model.Server{{Name: "nat1", ID: 1, Weight: weight}} }
	s.Running.Services = []model.Service{{Name: "gateway", Protocol: model.ProtocolAny, Servers: nat(1)}, {Name: "public", Protocol: model.ProtocolAny, Servers: nat(0)}}
	if problems := s.Unserved(); len(problems) > 0 {
		t.Errorf("%q", problems)
	}
	s.Running.Services[1].Protocol = model.ProtocolTCP
	if problems := s.Unserved(); len(problems) != 1 {
		t.Errorf("a service of TCP: %q", problems)
	}
}

func TestServersThatTakeNewConnectionsAreCounted(t *testing.T) {
	s := example()
	s.Running.Services[0].Servers = append(s.Running.Services[0].Servers, model.Server{Name: "s4", ID: 4}, model.Server{Name: "s5", ID: 5, Weight: 1, State: model.StateDraining})
	s.Running.Services = append(s.Running.Services, model.Service{Name: "empty"})
	if taking := s.Taking(); !maps.Equal(taking, map[string]Taking{"web": {New: 1, Healthy: 1}, "empty": {}}) { // s1 is unhealthy, s4 has no weight, s5 drains
		t.Errorf("%v", taking)
	}
}
