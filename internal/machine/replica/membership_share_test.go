package replica

import (
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

func TestSyncsAreSharedOnceAllLoadBalancersCan(t *testing.T) {
	h := newHosts(t, 1, "lb1", "lb2", "lb3", "lb4", "lb5")
	h.wanted.Chain = 3
	h.hosts["lb4"].old = true
	h.await(3*time.Second, "lb1", "lb2", "lb3", "lb4", "lb5")
	shared := func() (shares int) {
		for _, sync := range h.stored.Ring.Ongoing {
			if sync.To != (ring.Places{}) {
				shares++
			}
		}
		return shares
	}
	fails := func(name string) {
		h.hosts[name].up = false
		for h.who.Phase() == Synced || len(h.stored.Ring.Ongoing) == 0 {
			h.tick()
		}
	}
	fails("lb5")
	if got := shared(); got != 0 {
		t.Errorf("%d shares, and one load balancer cannot do any", got)
	}
	h.start("lb5")
	h.hosts["lb4"].old = false
	h.await(10*time.Second, "lb1", "lb2", "lb3", "lb4", "lb5")
	fails("lb5")
	if shared() == 0 {
		t.Error("nothing is shared, and all can")
	}
	for _, o := range h.hosts {
		o.old = true
	}
	h.stays(2*time.Second, "lb1", "lb2", "lb3", "lb4")
	if blocked := h.who.Blocked(); len(blocked) == 0 || !strings.Contains(blocked[0], "because it runs an earlier version: upgrade or stop it") {
		t.Error(blocked)
	}
	for _, o := range h.hosts {
		o.old = false
	}
	h.await(time.Second, "lb1", "lb2", "lb3", "lb4")
}
