package daemon

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/nodeclient"
)

func TestWeightsOfControllersWhoseStoreBeganAnewAreTaken(t *testing.T) {
	known := &follow.Weights{}
	known.Merge(&follow.Update{Term: 500, Version: 9, Complete: true, Weights: []model.Share{{ID: 1, Weight: 4}}})
	lb := &LB{
		log: slog.New(slog.NewTextHandler(io.Discard, nil)), weights: map[string]*follow.Weights{"web": known},
		remote: &remote{joined: nodeclient.Join(t.Context(), nodeclient.Options{})},
	}
	lb.remote.follower.Take(100)
	older := func() bool { return lb.remote.follower.Offer("c1", 7, true) }
	older()
	now := time.Unix(1000, 0)
	lb.joinAnew(now)
	if older() {
		t.Fatal("gave up at once")
	}
	lb.joinAnew(now.Add(time.Hour))
	if !older() {
		t.Fatal("never gave up")
	}
	if newer, _ := known.Merge(&follow.Update{Term: 3, Version: 1, Complete: true, Weights: []model.Share{{ID: 1, Weight: 2}}}); !newer {
		t.Error("the weights of a lower term were refused")
	}
}

func TestAnEmptiedStoreEndsNoFleet(t *testing.T) {
	lb := &LB{
		log:    slog.New(slog.NewTextHandler(io.Discard, nil)),
		remote: &remote{joined: nodeclient.Join(t.Context(), nodeclient.Options{})},
	}
	lb.remote.follower.Take(100)
	lb.toldState("c1", &ballastv1.State{Revision: 2, Complete: true})
	now := time.Unix(1000, 0)
	lb.joinAnew(now)
	lb.joinAnew(now.Add(time.Hour))
	if lb.remote.follower.Revision != 100 {
		t.Fatal("gave up its state for that of a store with nothing in it")
	}
	lb.toldState("c1", &ballastv1.State{Revision: 3, Services: []*ballastv1.ServiceState{{Service: &ballastv1.Service{Name: "web"}}}})
	lb.joinAnew(now)
	lb.joinAnew(now.Add(time.Hour))
	if !lb.remote.follower.Offer("c1", 4, true) {
		t.Error("does not take the state of a store that was filled again")
	}
}
