package dataplane

import (
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
	tables := &Tables{weights: map[string]*follow.Weights{"web": known}}
	client := nodeclient.NewClient(nodeclient.Options{Log: slog.New(slog.DiscardHandler)})
	client.Resume(100)
	older := func() (taken bool) {
		state := &ballastv1.State{Revision: 7, Complete: true, Services: []*ballastv1.ServiceState{{}}}
		client.Follow("c1", state, func() error { taken = true; return nil })
		return taken
	}
	older()
	now := time.Unix(1000, 0)
	client.ResyncIfNeeded(now, tables.ForgetTerms)
	if older() {
		t.Fatal("gave up at once")
	}
	client.ResyncIfNeeded(now.Add(time.Hour), tables.ForgetTerms)
	if !older() {
		t.Fatal("never gave up")
	}
	if newer, _ := known.Merge(&follow.Update{Term: 3, Version: 1, Complete: true, Weights: []model.Share{{ID: 1, Weight: 2}}}); !newer {
		t.Error("the weights of a lower term were refused")
	}
}
