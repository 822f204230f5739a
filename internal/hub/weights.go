package hub

import (
	"maps"
	"slices"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// softWeights are the newest weights of a service, and which update changed each: a peer that has missed some is told the sum.
type softWeights struct {
	term, version uint64
	count         uint64 // updates taken
	complete      uint64 // number of the last complete one; 0: there was none
	values        map[uint32]uint32
	changed       map[uint32]uint64 // id -> number of the last update that named it

	newest      *frame // the last update as it came
	newestSince uint64 // it tells all that is to know to whoever knows this update
}

func newSoftWeights() *softWeights {
	return &softWeights{values: map[uint32]uint32{}, changed: map[uint32]uint64{}}
}

// take merges an update; one that is not newer is ignored.
func (w *softWeights) take(update *ballastv1.Weights) bool {
	if w.count > 0 && (update.Term < w.term || update.Term == w.term && update.Version <= w.version) {
		return false
	}
	w.count++
	w.term, w.version = update.Term, update.Version
	w.newestSince = w.count - 1
	if update.Complete {
		w.complete, w.newestSince = w.count, 0
		clear(w.values)
		clear(w.changed)
	}
	for i, id := range update.Ids {
		w.values[id], w.changed[id] = update.Weights[i], w.count
	}
	w.newest = messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Weights{Weights: update}})
	return true
}

// since returns one update that brings whoever knows update number known up to date.
func (w *softWeights) since(service string, known uint64) *frame {
	if w.newestSince <= known {
		return w.newest
	}
	sum := &ballastv1.Weights{Service: service, Term: w.term, Version: w.version, Complete: w.complete > known}
	for _, id := range slices.Sorted(maps.Keys(w.values)) {
		if w.changed[id] > known {
			sum.Ids, sum.Weights = append(sum.Ids, id), append(sum.Weights, w.values[id])
		}
	}
	return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Weights{Weights: sum}})
}
