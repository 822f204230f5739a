package plan

import (
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

func TestLimitsFollowWhatServicesNeed(t *testing.T) {
	web := model.NewService()
	web.TableSlots = model.DefaultSlots
	few := LimitsFor([]model.Service{web})
	if d := DefaultLimits; few.Servers != d.Servers || few.Slots*4 != d.Slots || few.Entries*8 != d.Entries || few.Replicated*16 != d.Replicated {
		t.Errorf("one service: %+v", few)
	}
	table, replicated, second := web, web, web
	table.Affinity, replicated.Affinity, second.Fallback = model.AffinityTable, model.AffinityReplicated, model.FallbackReplicated
	if l := LimitsFor([]model.Service{web, table}); l.Entries != DefaultLimits.Entries || l.Replicated != few.Replicated {
		t.Errorf("with a table: %+v", l)
	}
	for _, s := range []model.Service{replicated, second} {
		if l := LimitsFor([]model.Service{s, web}); l.Entries != few.Entries || l.Replicated != DefaultLimits.Replicated {
			t.Errorf("with replicated connections: %+v", l)
		}
	}
	if l := (Limits{Servers: 7, Entries: 64}).Or(few); l.Servers != 7 || l.Entries != 64 || l.Slots != few.Slots || l.Services != few.Services || l.Local != few.Local {
		t.Errorf("what was said does not hold: %+v", l)
	}
}

// A fleet that DefaultLimits have no room for, of services with one and with several columns, fits, and so does one of twice its services.
func TestLargeFleetsFitIntoTheirLimits(t *testing.T) {
	service := func(i int) Service {
		s := testService("s"+string(rune('a'+i)), vipAt(i), 1)
		s.TableSlots, s.Servers = 65521, nil
		for id := range uint16(2000) {
			server := model.NewServer()
			server.ID, server.Address = id+1, netip.AddrFrom4([4]byte{10, byte(i), byte(id >> 8), byte(id)})
			s.Servers = append(s.Servers, server)
		}
		if i == 0 {
			s.Dispatch, s.Forward = model.DispatchChoices, model.ForwardGUE
		}
		return s
	}
	want := &Want{Keys: testKeys(1)}
	var services []model.Service
	const count = 17
	for i := range count {
		want.Services = append(want.Services, service(i))
		services = append(services, want.Services[i].Service)
	}
	limits := LimitsFor(services)
	limits.ServerIDs *= 2
	if limits.Servers < 2*2000*count || limits.Slots < 4*65521*(count+1) {
		t.Fatalf("%+v", limits)
	}
	n := &node{t, NewTables(limits), newMemory()}
	n.update(want)
	for i := range count {
		want.Services = append(want.Services, service(count+i))
	}
	n.update(want)
}
