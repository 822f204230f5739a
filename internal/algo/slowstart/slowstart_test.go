package slowstart

import (
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

func shares(weights ...uint16) (list []model.Share) {
	for i, weight := range weights {
		list = append(list, model.Share{ID: uint16(i + 1), Weight: weight})
	}
	return list
}

func TestSharesAreInProportionToWeightAndPart(t *testing.T) {
	for name, test := range map[string]struct {
		parts Parts
		want  []model.Share
	}{
		"nobody starts":   {nil, shares(1, 4, model.MaxWeight)},
		"one begins":      {Parts{1: {Tenths: 1}}, shares(1, 40, 10*model.MaxWeight)},
		"two, unequal":    {Parts{1: {Tenths: 1}, 2: {Tenths: 9}}, shares(1, 36, 10*model.MaxWeight)},
		"all, alike":      {Parts{1: {Tenths: 3}, 2: {Tenths: 3}, 3: {Tenths: 3}}, shares(3, 12, 3*model.MaxWeight)},
		"one of no share": {Parts{9: {Tenths: 3}}, shares(10, 40, 10*model.MaxWeight)},
	} {
		given := shares(1, 4, model.MaxWeight)
		if have := test.parts.Shares(given); !slices.Equal(have, test.want) {
			t.Errorf("%s: %v, want %v", name, have, test.want)
		}
		if !slices.Equal(given, shares(1, 4, model.MaxWeight)) {
			t.Errorf("%s: changed what it was made of", name)
		}
	}
}

// Promise: Over time a server that starts has its part of its class, to less than one, and the others have theirs.
func TestClassesAreSharedOutOverTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		takers := shares(make([]uint16, rapid.IntRange(2, 6).Draw(t, "servers"))...)
		weights, parts := map[uint16]uint16{}, Parts{}
		whole := rapid.IntRange(1, len(takers)-1).Draw(t, "whole")
		for i, taker := range takers {
			weights[taker.ID] = rapid.Uint16Range(1, model.MaxClasses).Draw(t, "weight")
			if i >= whole {
				parts[taker.ID] = Part{Tenths: rapid.Uint8Range(1, Whole-1).Draw(t, "tenths")}
			}
		}
		sum := map[uint16]int{}
		ticks := rapid.IntRange(1, 50).Draw(t, "ticks")
		for tick := range ticks {
			for id, part := range parts {
				part.Tick = uint64(tick)
				parts[id] = part
			}
			for id, weight := range parts.Classes(takers, weights) {
				sum[id] += int(weight)
			}
		}
		for _, taker := range takers {
			want := float64(ticks) * float64(weights[taker.ID]) * float64(parts.of(taker.ID)) / Whole
			if math.Abs(float64(sum[taker.ID])-want) >= 1 {
				t.Fatalf("server %d of weight %d, %+v has %d in %d ticks, want %g", taker.ID, weights[taker.ID], parts[taker.ID], sum[taker.ID], ticks, want)
			}
		}
	})
}

func TestClassesWhereFewAreLeft(t *testing.T) {
	begins := func(tenths uint8) Part { return Part{Tenths: tenths} } // at tick 0 it has nothing yet
	for name, test := range map[string]struct {
		parts   Parts
		weights map[uint16]uint16
		want    map[uint16]uint16
	}{
		"nobody starts":                         {nil, map[uint16]uint16{1: 2}, map[uint16]uint16{1: 2}},
		"all start alike":                       {Parts{1: begins(4), 2: begins(4), 3: begins(4)}, map[uint16]uint16{1: 2}, map[uint16]uint16{1: 2}},
		"the only one with capacity starts":     {Parts{3: begins(1)}, map[uint16]uint16{3: 1}, map[uint16]uint16{1: 1, 2: 1, 3: 0}},
		"nothing is known":                      {Parts{3: begins(1)}, nil, map[uint16]uint16{1: 1, 2: 1, 3: 0}},
		"all start, and one a step behind":      {Parts{1: begins(4), 2: begins(4), 3: begins(3)}, nil, map[uint16]uint16{1: 1, 2: 1, 3: 0}},
		"others have capacity":                  {Parts{3: begins(1)}, map[uint16]uint16{1: 1, 3: 4}, map[uint16]uint16{1: 1, 2: 0, 3: 0}},
		"somebody starts who takes nothing new": {Parts{9: begins(1)}, map[uint16]uint16{1: 1}, map[uint16]uint16{1: 1}},
	} {
		if have := test.parts.Classes(shares(1, 1, 1), test.weights); !maps.Equal(have, test.want) {
			t.Errorf("%s: %v, want %v", name, have, test.want)
		}
	}
}
