// The newest weights of a service.
package hub

import (
	"maps"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
)

// softWeights are the newest weights of a service, and which update changed each: a node that has missed some is sent the sum.
type softWeights struct {
	follow.Weights
	service  string
	count    uint64            // updates taken
	complete uint64            // number of the last complete one; 0: there was none
	changed  map[uint16]uint64 // id -> number of the last update that named it

	newest      *frame // the last update as it came
	newestSince uint64 // newest is all that is new to a node that knows this update
}

func newSoftWeights(service string) *softWeights {
	return &softWeights{service: service, changed: map[uint16]uint64{}}
}

// take merges an update; one that is not newer is ignored.
func (w *softWeights) take(update *follow.Update) bool {
	if newer, _ := w.Merge(update); !newer {
		return false
	}
	w.count++
	w.newestSince = w.count - 1
	if update.Complete {
		w.complete, w.newestSince = w.count, 0
		clear(w.changed)
	}
	for _, share := range update.Weights {
		w.changed[share.ID] = w.count
	}
	w.newest = w.frame(update)
	return true
}

// since returns one update that brings whoever knows update number known up to date.
func (w *softWeights) since(known uint64) *frame {
	if w.newestSince <= known {
		return w.newest
	}
	sum := &follow.Update{Term: w.Term, Version: w.Version, Complete: w.complete > known}
	for _, id := range slices.Sorted(maps.Keys(w.Values)) {
		if w.changed[id] > known {
			sum.Weights = append(sum.Weights, model.Share{ID: id, Weight: w.Values[id]})
		}
	}
	return w.frame(sum)
}

func (w *softWeights) frame(update *follow.Update) *frame {
	return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Weights{Weights: api.WeightsToProto(w.service, update)}})
}
