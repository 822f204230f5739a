package nodeclient

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
)

// serviceState is one of any size, with servers that have left and servers that are unhealthy.
func serviceState(random *rand.Rand, i int) *ballastv1.ServiceState {
	s := model.NewService()
	s.Name, s.VIP, s.Ports = fmt.Sprintf("service-%d", i), netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), []uint16{uint16(80 + random.IntN(9))}
	state := &ballastv1.ServiceState{}
	for id := range uint16(2 + random.IntN(4)) {
		server := model.NewServer()
		server.Name, server.ID, server.Address = fmt.Sprintf("s%d", id), id+1, netip.AddrFrom4([4]byte{10, 0, byte(i), byte(id + 1)})
		if id == 0 {
			state.Removed = append(state.Removed, api.ServerToProto(&server))
			continue
		}
		s.Servers = append(s.Servers, server)
		if random.IntN(3) == 0 {
			state.Down = append(state.Down, uint32(server.ID))
		}
	}
	s.ApplyDefaults()
	state.Service = api.ServiceToProto(&s)
	return state
}

// A node that hears of changes alone has what one has that is told everything.
func TestChangesLeadToTheStateThatACompleteMessageTells(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	keys := api.KeysToProto(&model.Keys{Placement: [16]byte{1}, Current: 1, Cookie: map[uint32][16]byte{1: {2}}})
	services := map[int]*ballastv1.ServiceState{}
	var changed State
	for round := range 200 {
		message := &ballastv1.State{Complete: round == 0}
		if round == 0 {
			message.Keys = keys
		}
		for range random.IntN(4) {
			i := random.IntN(6)
			name := fmt.Sprintf("service-%d", i)
			message.Services = slices.DeleteFunc(message.Services, func(s *ballastv1.ServiceState) bool { return s.Service.Name == name })
			message.Gone = slices.DeleteFunc(message.Gone, func(gone string) bool { return gone == name })
			if services[i] = nil; random.IntN(3) > 0 {
				services[i] = serviceState(random, i)
				message.Services = append(message.Services, services[i])
			} else {
				message.Gone = append(message.Gone, name)
			}
		}
		everything := &ballastv1.State{Complete: true, Keys: keys}
		for i := range 6 {
			if services[i] != nil {
				everything.Services = append(everything.Services, services[i])
			}
		}
		draining := &ballastv1.Draining{} // of servers that there are, and of others
		for range random.IntN(4) {
			draining.Servers = append(draining.Servers, &ballastv1.ServerKey{Service: fmt.Sprintf("service-%d", random.IntN(6)), Id: uint32(random.IntN(5))})
		}
		message.Draining, everything.Draining = draining, draining
		next, err := changed.After(message)
		changed = next
		complete, other := State{}.After(everything)
		if err != nil || other != nil {
			t.Fatal(err, other)
		}
		slices.SortFunc(changed.Removed, func(a, b fleet.Removed) int { return slices.Compare([]byte(a.Service), []byte(b.Service)) })
		for _, service := range changed.Running.Services {
			for _, server := range service.Servers {
				drains := slices.ContainsFunc(draining.Servers, func(k *ballastv1.ServerKey) bool { return k.Service == service.Name && k.Id == uint32(server.ID) })
				if drains != (server.State == model.StateDraining) {
					t.Fatalf("round %d: server %d of %s is %s, and draining are %v", round, server.ID, service.Name, server.State, draining)
				}
			}
		}
		if !reflect.DeepEqual(changed, complete) {
			t.Fatalf("round %d: by changes\n%+v\nat once\n%+v", round, changed, complete)
		}
	}
}

func TestKeysOfTicketsAreTakenAsAWholeOrNotAtAll(t *testing.T) {
	keys := rotation.TicketKeys{Current: 1, Keys: []rotation.TicketKey{{Epoch: 1, Secret: rotation.TicketSecret{1}}, {Epoch: 2, Secret: rotation.TicketSecret{2}}}}
	told := func(services ...string) *ballastv1.TicketKeys {
		message := &ballastv1.TicketKeys{}
		for _, name := range services {
			message.Services = append(message.Services, api.TicketsToProto(name, keys.Of(name)))
		}
		return message
	}
	state, err := State{}.After(&ballastv1.State{Complete: true, Tickets: told("web", "mail")})
	if err != nil || len(state.Tickets) != 2 || !reflect.DeepEqual(state.Tickets["web"], keys.Of("web")) {
		t.Fatal(state.Tickets, err)
	}
	for name, message := range map[string]*ballastv1.State{"changes": {}, "an older controller's": {Complete: true}} {
		if next, err := state.After(message); err != nil || !reflect.DeepEqual(next.Tickets, state.Tickets) {
			t.Errorf("%s: %v, %v", name, next.Tickets, err)
		}
	}
	if next, err := state.After(&ballastv1.State{Tickets: told("mail")}); err != nil || len(next.Tickets) != 1 {
		t.Errorf("a service that is not named: %v, %v", next.Tickets, err)
	}
	if next, err := state.After(&ballastv1.State{Tickets: told()}); err != nil || len(next.Tickets) != 0 {
		t.Errorf("none is named: %v, %v", next.Tickets, err)
	}
	for _, wrong := range []func(*ballastv1.ServiceTicketKeys){
		func(s *ballastv1.ServiceTicketKeys) { s.Keys[0].Secret = s.Keys[0].Secret[1:] },
		func(s *ballastv1.ServiceTicketKeys) { s.Keys[0].Secret = make([]byte, 32) },
		func(s *ballastv1.ServiceTicketKeys) { s.Keys[1].Epoch = 1 },
		func(s *ballastv1.ServiceTicketKeys) { s.Keys = nil },
		func(s *ballastv1.ServiceTicketKeys) { s.Current = 3 },
		func(s *ballastv1.ServiceTicketKeys) { s.Service = "mail" },
	} {
		message := told("web", "mail")
		wrong(message.Services[0])
		if _, err := state.After(&ballastv1.State{Tickets: message}); err == nil {
			t.Errorf("%v is taken", message)
		}
	}
}

func TestWhatIsOfTheWholeFleetStaysUntilItIsSentAgain(t *testing.T) {
	state, err := State{}.After(&ballastv1.State{Complete: true, Nodes: &ballastv1.Nodes{Unserved: "reject"}})
	if err != nil || state.Running.Unserved != model.UnservedReject {
		t.Fatal(state.Running.Unserved, err)
	}
	if state, err = state.After(&ballastv1.State{}); err != nil || state.Running.Unserved != model.UnservedReject {
		t.Errorf("after changes of other things: %s, %v", state.Running.Unserved, err)
	}
	if _, err := state.After(&ballastv1.State{Nodes: &ballastv1.Nodes{Unserved: "refuse"}}); err == nil || !strings.HasPrefix(err.Error(), "unserved: ") {
		t.Errorf("an unknown name: %v", err)
	}
	if state, err = state.After(&ballastv1.State{Nodes: &ballastv1.Nodes{}}); err != nil || state.Running.Unserved != model.UnservedPass { // of an older controller
		t.Errorf("sent without: %s, %v", state.Running.Unserved, err)
	}
}
