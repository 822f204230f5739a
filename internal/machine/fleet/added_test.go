package fleet

import (
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// Promise: A server that is added to a service with health checks gets no new connections before checks have found it healthy, unless no other
// server takes any.
func TestServersThatAreAddedAreUnhealthyUntilTheyAreChecked(t *testing.T) {
	service := func(check model.Check, states map[uint16]model.ServerState) *model.Service {
		s := model.NewService()
		s.Health.Check = check
		for id := range uint16(10) {
			if state, ok := states[id]; ok {
				s.Servers = append(s.Servers, model.Server{ID: id, Weight: 1, State: state})
			}
		}
		return &s
	}
	active := func(ids ...uint16) map[uint16]model.ServerState {
		states := map[uint16]model.ServerState{}
		for _, id := range ids {
			states[id] = model.StateActive
		}
		return states
	}
	draining := active(1, 2, 3)
	draining[1], draining[2] = model.StateDraining, model.StateOff
	for name, test := range map[string]struct {
		before, next *model.Service
		down, want   []uint16
	}{
		"a new service":               {nil, service(model.CheckTCP, active(1, 2)), nil, nil},
		"nothing is added":            {service(model.CheckTCP, active(1, 2)), service(model.CheckTCP, active(1, 2)), []uint16{2}, []uint16{2}},
		"two are added":               {service(model.CheckTCP, active(2)), service(model.CheckTCP, active(1, 2, 3)), nil, []uint16{1, 3}},
		"beside one that is down":     {service(model.CheckTCP, active(1, 2)), service(model.CheckTCP, active(1, 2, 3)), []uint16{2}, []uint16{2, 3}},
		"no checks":                   {service(model.CheckNone, active(1)), service(model.CheckNone, active(1, 2)), nil, nil},
		"checks begin":                {service(model.CheckNone, active(1)), service(model.CheckTCP, active(1, 2)), nil, nil},
		"all others leave":            {service(model.CheckTCP, active(1)), service(model.CheckTCP, active(2, 3)), nil, nil},
		"all others take nothing new": {service(model.CheckTCP, active(1, 2)), service(model.CheckTCP, draining), nil, nil},
	} {
		u := Unhealthy{Down: test.down, Kept: []uint16{9}}
		before := slices.Clone(test.down)
		if have := u.WithAdded(test.before, test.next); !slices.Equal(have.Down, test.want) || !slices.Equal(have.Kept, u.Kept) {
			t.Errorf("%s: %+v, want %v", name, have, test.want)
		}
		if !slices.Equal(u.Down, before) {
			t.Errorf("%s: changed what it was made of: %v", name, u.Down)
		}
	}
}
