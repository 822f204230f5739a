package replicas

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// A controller that has just started has heard of nobody: who waits for a drain must not take that for its end.
func TestWhoLeavesTheRingIsDrainingAlsoForAControllerThatHearsNothing(t *testing.T) {
	members := replica.Members{Chain: 3, Ring: replica.State{Version: 1, Synced: 1, Lists: []ring.List{ring.Even([]uint16{1, 2, 3, 4}, 1)}},
		Nodes: []replica.PeerNode{{Number: 1, Name: "lb1"}, {Number: 2, Name: "lb2"}, {Number: 3, Name: "lb3"}, {Number: 4, Name: "lb4"}}}
	node := members.Nodes[0]
	for _, expected := range []string{"lost", "draining"} {
		if status := statusOf(&members, &node, nil, true); status.State != expected || status.Share == 0 {
			t.Errorf("%v, want %s", status, expected)
		}
		members.Drained = []string{node.Name}
	}
	node.Number = 9
	if status := statusOf(&members, &node, nil, true); status.State != "drained" || status.Share != 0 {
		t.Errorf("off the ring: %v", status)
	}
}
