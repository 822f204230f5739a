package check

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// chains returns the chains of a key in all lists since the last one that was synced.
func (w *world) chains(key ring.Key) [][]ring.Member {
	lists := w.controller.State.Lists
	made := ring.Chains{Length: w.setup.Config.Chain, TailAfter: !w.setup.Config.Rules.CutAtKey}
	chains := make([][]ring.Member, len(lists))
	for i, list := range lists {
		chains[i] = made.At(list, key.Position())
	}
	return chains
}

// common reports whether a key has a node that was in all its chains since the last that was synced, and has not crashed; without counts
// as crashed, too.
func (w *world) common(key ring.Key, without uint16) bool {
	chains := w.chains(key)
	if len(chains) == 0 {
		return false
	}
	for _, member := range chains[0] {
		if member.Node == without || w.crashed[member.Node] {
			continue
		}
		if !slices.ContainsFunc(chains[1:], func(chain []ring.Member) bool { return !ring.Includes(chain, member) }) {
			return true
		}
	}
	return false
}

// mayLose reports whether all keys still have a common node when a node is lost, or none is asked for.
func (w *world) mayLose(id uint16) bool {
	if w.setup.LoseCommon {
		return true
	}
	for i := range w.keys {
		if !w.keys[i].void && !w.common(w.keys[i].key, id) {
			return false
		}
	}
	return true
}

// review gives up keys that have no common node any more through no fault of the controller: it did not know that a node had crashed
// when it made a planned change. When it could have known, or should have refused, answers still have to be the same.
func (w *world) review(planned bool) {
	version := w.controller.State.Version
	if version == w.reviewed || w.setup.LoseCommon {
		return
	}
	w.reviewed = version
	for i := range w.keys {
		c := &w.keys[i]
		if c.void || w.common(c.key, 0) {
			continue
		}
		_, known := ring.FirstCommon(w.chains(c.key))
		c.void = known || !planned || w.setup.Config.Chain == 1
	}
}
