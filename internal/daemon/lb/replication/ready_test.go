package replication

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// A load balancer that comes back hears of a ring before that knows it: packets that came then would be of connections that others have entries for.
func TestARingThatDoesNotNameALoadBalancerDoesNotMakeItReady(t *testing.T) {
	r := &Replication{Options: Options{Name: "lb1"}, path: loaded(t, 1)}
	r.state.Store(&State{})
	view := func(version uint32) *ballastv1.ReplicaView {
		v := &ballastv1.ReplicaView{Revision: 1, Version: version, Synced: version, Chain: 1, IdleTimeout: durationpb.New(10 * time.Minute), Nodes: []*ballastv1.ReplicaNode{
			{Number: 7, Name: "lb2", Address: "10.9.0.2:7475", Incarnation: 1}}}
		if version > 0 {
			v.Since = []uint32{version}
			v.Nodes[0].OnRing, v.Nodes[0].Life = true, 1
		}
		return v
	}
	if err := r.take(view(5)); err != nil || r.told.Load() {
		t.Errorf("a ring of others: %v, ready %v", err, r.told.Load())
	}
	if err := r.take(view(0)); err != nil || !r.told.Load() {
		t.Errorf("no ring: %v, ready %v", err, r.told.Load())
	}
}
