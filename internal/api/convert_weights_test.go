package api

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestWeightsArriveAsTheyWereSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := &follow.Update{Term: rapid.Uint64().Draw(t, "term"), Version: rapid.Uint64().Draw(t, "version"), Complete: rapid.Bool().Draw(t, "complete"),
			Weights: []model.Share{}}
		for range rapid.IntRange(0, 3).Draw(t, "servers") {
			sent.Weights = append(sent.Weights, model.Share{ID: rapid.Uint16().Draw(t, "id"), Weight: rapid.Uint16().Draw(t, "weight")})
		}
		if have := WeightsFromProto(WeightsToProto("web", sent)); !reflect.DeepEqual(have, sent) {
			t.Fatalf("sent %v, have %v", sent, have)
		}
	})
}

func TestWeightsThatNoServerCanHaveAreLeftOut(t *testing.T) {
	update := WeightsFromProto(&ballastv1.Weights{Ids: []uint32{1 << 20, 1, 2}, Weights: []uint32{1, 2, 1 << 16}})
	if want := []model.Share{{ID: 1, Weight: 2}}; !reflect.DeepEqual(update.Weights, want) {
		t.Errorf("have %v, want %v", update.Weights, want)
	}
	if update := WeightsFromProto(&ballastv1.Weights{Ids: []uint32{1}}); update != nil {
		t.Errorf("of ids without weights: %v", update)
	}
}
