package tickets

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestTheNextKeyWaitsUntilAllServersHaveHadItForLongEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := tracker{settle: time.Minute}
		next, other := &rotation.TicketKey{Epoch: 2, Secret: rotation.TicketSecret{1}}, &rotation.TicketKey{Epoch: 2, Secret: rotation.TicketSecret{2}}
		if servers.waits(next) == nil {
			t.Error("it is used before anybody has looked who has it")
		}
		servers.observe(&rotation.Nodes{}, &model.Fleet{}, next)
		if servers.waits(next) == nil {
			t.Error("it is used at once")
		}
		time.Sleep(time.Minute)
		servers.observe(&rotation.Nodes{}, &model.Fleet{}, next)
		if why := servers.waits(next); why != nil {
			t.Errorf("all have had it for a minute: %v", why)
		}
		if servers.waits(other) == nil {
			t.Error("another key of the same epoch is taken for it")
		}
	})
}
