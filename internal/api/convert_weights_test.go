package api

import (
	"math"
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

func TestCountsThatMakeNoSenseAreRefused(t *testing.T) {
	sent := &follow.Counts{Term: 3, Version: 9, Share: 0.25, Servers: []follow.Count{{ID: 1, Open: 7}, {ID: 65535, Open: math.MaxInt32}}}
	if have := CountsFromProto(CountsToProto("web", sent, sent.Share)); !reflect.DeepEqual(have, sent) {
		t.Errorf("sent %v, have %v", sent, have)
	}
	for what, open := range map[string]*ballastv1.OpenConnections{
		"ids without counts": {Ids: []uint32{1}, Share: 1}, "a share above 1": {Share: 1.5}, "a negative share": {Share: -1},
		"no number": {Share: float32(math.NaN())},
	} {
		if have := CountsFromProto(open); have != nil {
			t.Errorf("%s: %v", what, have)
		}
	}
	if have := CountsFromProto(&ballastv1.OpenConnections{Ids: []uint32{1 << 16, 2}, Open: []uint32{1, 1 << 31}}); len(have.Servers) != 0 {
		t.Errorf("of servers that cannot be: %v", have.Servers)
	}
}

func TestLoadsThatMakeNoSenseAreRefused(t *testing.T) {
	sent := &follow.Loads{Term: 3, Version: 9, Share: 0.25, Requests: true, Servers: []follow.Load{{ID: 1, Load: 7.5}, {ID: 65535, Load: 0}}}
	if have := LoadsFromProto(LoadsToProto("web", sent, sent.Share)); !reflect.DeepEqual(have, sent) {
		t.Errorf("sent %v, have %v", sent, have)
	}
	for what, loads := range map[string]*ballastv1.ReportedLoads{
		"ids without loads": {Ids: []uint32{1}, Share: 1}, "a share above 1": {Share: 1.5}, "no number": {Share: float32(math.NaN())},
	} {
		if have := LoadsFromProto(loads); have != nil {
			t.Errorf("%s: %v", what, have)
		}
	}
	impossible := []float32{1, -1, float32(math.NaN()), float32(math.Inf(1))}
	if have := LoadsFromProto(&ballastv1.ReportedLoads{Ids: []uint32{1 << 16, 2, 3, 4}, Loads: impossible}); len(have.Servers) != 0 {
		t.Errorf("of servers and loads that cannot be: %v", have.Servers)
	}
}
