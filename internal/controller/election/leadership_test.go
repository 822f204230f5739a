package election

import (
	"fmt"
	"testing"

	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/store"
)

func TestControllersOnTheListDivideTheServicesAndOthersLeadNothing(t *testing.T) {
	live := []store.Member{{Name: "c1", Term: 1}, {Name: "c2", Term: 2}, {Name: "c3", Term: 3}}
	now := documents.New()
	now.Controllers, now.Revisions[documents.ControllersKey] = listOf(live[:2]), 7
	if agreed(live, now) || !agreed(live[:2], now) || agreed(live[:2], nil) {
		t.Error("the list is compared with something else than who lives")
	}
	for i := range 50 {
		service := fmt.Sprint("service", i)
		leaders := 0
		for _, m := range live {
			if l := decide(m.Name, live, now); l.Leads(m.Name, service) && l.Term == 7 {
				leaders++
			}
		}
		if leaders != 1 {
			t.Errorf("%s has %d leaders", service, leaders)
		}
	}
	restarted := []store.Member{{Name: "c1", Term: 4}, live[1]}
	for why, l := range map[string]Leadership{
		"is not on the list":             decide("c3", live, now),
		"does not live":                  decide("c1", live[1:], now),
		"was restarted since":            decide("c1", restarted, now),
		"knows nothing of the store yet": decide("c1", live, nil),
	} {
		if l.Term != 0 || l.LeaderOf("web") != "" {
			t.Errorf("who %s leads by %v", why, l)
		}
	}
}
