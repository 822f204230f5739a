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
		remote: &remote{Client: nodeclient.NewClient(nodeclient.Options{Log: slog.New(slog.DiscardHandler)})},
	}
	lb.remote.Resume(100)
	older := func() (taken bool) {
		state := &ballastv1.State{Revision: 7, Complete: true, Services: []*ballastv1.ServiceState{{}}}
		lb.remote.Follow("c1", state, func() error { taken = true; return nil })
		return taken
	}
	older()
	now := time.Unix(1000, 0)
	lb.resyncIfNeeded(now)
	if older() {
		t.Fatal("gave up at once")
	}
	lb.resyncIfNeeded(now.Add(time.Hour))
	if !older() {
		t.Fatal("never gave up")
	}
	if newer, _ := known.Merge(&follow.Update{Term: 3, Version: 1, Complete: true, Weights: []model.Share{{ID: 1, Weight: 2}}}); !newer {
		t.Error("the weights of a lower term were refused")
	}
}
