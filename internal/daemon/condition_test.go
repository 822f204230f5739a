package daemon_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
)

func TestControllersHearWhatIsWrongWithALoadBalancer(t *testing.T) {
	h := newRemoteHost(t)
	h.start()
	hub, end := h.control(1)
	defer end()
	hub.SetState(viewOf(5, nil, 2, 3))
	h.eventually("lb1 to be ready for the controller", func() bool {
		nodes := hub.Nodes()
		return len(nodes) == 1 && nodes[0].Ready == "yes" && nodes[0].Revision == 5
	})
	unserved := func(problem string) bool {
		return strings.HasPrefix(problem, "service web: no server takes new connections")
	}
	hub.SetState(viewOf(6, []uint16{2, 3}, 2, 3))
	h.await("the problem here", func(s api.LBStatus) bool { return s.Ready && slices.ContainsFunc(s.Problems, unserved) })
	h.eventually("the problem there", func() bool { return slices.ContainsFunc(hub.Nodes()[0].Problems, unserved) })
	hub.SetState(viewOf(7, []uint16{2}, 2, 3))
	h.eventually("the end of it", func() bool { return !slices.ContainsFunc(hub.Nodes()[0].Problems, unserved) })
}
