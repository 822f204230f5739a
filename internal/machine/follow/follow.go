// Package follow decides what a node takes from controllers that all tell it the same, some of them late. It is pure: time is an
// argument, nothing here does I/O.
package follow

import (
	"maps"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	// aheadMax is how long every controller in reach must have an older revision than the node, until the node believes them.
	aheadMax = 10 * time.Second
	// resyncInterval is how long after it has refused a state the node asks for it once more, if nothing newer is known anywhere.
	resyncInterval = 10 * time.Second
)

// Follower knows which revision of the desired state a node has. The zero value has none and follows nobody.
//
// Every controller tells every change, in order, and each message covers all changes since the one before it on its stream. So a
// message that is newer than what the node has leaves nothing out, whoever told the node before, and any other is old news. That holds
// until the node refuses one: from then on it lacks what that said, and takes nothing but complete states until it has one as new. Nor
// does it hold on a stream whose complete state was older than the node's: the store may have been restored from a copy, and have come to
// the same revisions by other changes. So nothing is taken of such a stream but another complete state.
type Follower struct {
	Revision uint64 // of the state that the node has

	offered    map[string]uint64 // by each controller that is connected
	behind     map[string]bool   // the complete state of its stream was older than the node's
	aheadSince time.Time         // of all of them; zero: the node is not
	refused    uint64            // newest revision that the node has refused or let go by; 0: none
	tried      uint64            // the same when it last refused one, or joined again to get it
	triedAt    time.Time
	yields     bool // the next complete state is taken, however old
}

// Offer takes note of a state of some revision and reports whether the node should take it. A complete state of the revision that
// the node has is taken, too: it mends whatever may be wrong.
func (f *Follower) Offer(controller string, revision uint64, complete bool) (take bool) {
	if f.offered == nil {
		f.offered, f.behind = map[string]uint64{}, map[string]bool{}
	}
	f.offered[controller] = revision // of one stream they fall only when the controller's store was restored from a copy
	if complete {
		f.behind[controller] = revision < f.Revision && !f.yields
		return revision >= f.Revision || f.yields
	}
	if f.refused != 0 {
		f.refused = max(f.refused, revision)
	}
	return revision > f.Revision && f.refused == 0 && !f.yields && !f.behind[controller]
}

// Take takes note that the node has what it was offered.
func (f *Follower) Take(revision uint64) {
	f.Revision, f.yields = revision, false
	if revision >= f.refused {
		f.refused, f.tried = 0, 0
	}
}

// Refuse takes note that the node could not do as it was offered, and goes on with what it has.
func (f *Follower) Refuse(now time.Time, revision uint64) {
	f.refused = max(f.refused, revision)
	f.tried, f.triedAt = f.refused, now
}

// NeedsFullState reports whether the node should join again for the complete state: it has refused one or let one go by, and by now
// somebody has a newer one, or it may be possible.
func (f *Follower) NeedsFullState(now time.Time) bool {
	lacks := max(f.refused, f.letGoBy())
	if lacks == 0 || lacks == f.tried && now.Sub(f.triedAt) < resyncInterval {
		return false
	}
	f.tried, f.triedAt = lacks, now
	return true
}

// letGoBy is the newest revision of the streams that were behind, if it is newer than the node's and others are not behind; else 0. Where all
// are, nodes wait for AheadOfAllControllers: they take the restored state at about the same time.
func (f *Follower) letGoBy() (newest uint64) {
	all := true
	for controller, revision := range f.offered {
		if !f.behind[controller] {
			all = false
		} else if revision > f.Revision {
			newest = max(newest, revision)
		}
	}
	if all {
		return 0
	}
	return newest
}

// Disbelieve takes note that a complete state is nothing to fall back to: a store that knows no service is one that was lost or has just
// been made, and nobody wants a whole fleet to end for that. What comes after it is no news of what the node has.
func (f *Follower) Disbelieve(controller string) {
	delete(f.offered, controller)
	f.behind[controller] = f.Revision != 0
}

// Forget takes note that a controller's stream has ended.
func (f *Follower) Forget(controller string) {
	delete(f.offered, controller)
	delete(f.behind, controller)
}

// AheadOfAllControllers reports whether the node has waited long enough with a revision that no controller in reach knows: their store was
// restored from a copy, or made anew, or they are cut off from it. The node then yields, begins with new Weights.Term, and joins again
// with its revision: who is cut off refuses it.
func (f *Follower) AheadOfAllControllers(now time.Time) bool {
	for controller, revision := range f.offered {
		if revision >= f.Revision && !f.behind[controller] {
			f.aheadSince = time.Time{}
			return false
		}
	}
	if len(f.offered) == 0 {
		f.aheadSince = time.Time{}
		return false
	}
	if f.aheadSince.IsZero() {
		f.aheadSince = now
	}
	return now.Sub(f.aheadSince) >= aheadMax
}

// Yield lets the next complete state in, however old it is: that of a controller whose store knows none as new as the node's. Streams are
// behind until they end.
func (f *Follower) Yield() {
	*f = Follower{Revision: f.Revision, behind: f.behind, offered: map[string]uint64{}, yields: true}
}

// Update is news of the soft weights of one service. Later terms begin anew with versions.
type Update struct {
	Term, Version uint64
	Complete      bool // it names all servers that have a weight, else those whose weight has changed
	Weights       []model.Share
}

// Weights are the soft weights of one service. The zero value knows none.
type Weights struct {
	Term, Version uint64
	Values        map[uint16]uint16 // server id -> weight; shared with nobody: replaced, never changed
}

// Merge takes an update that is newer than what is known: of a later term, or of this term and a later version. Ids that an update
// does not name keep their weight, or have none any more when it is complete. It reports whether the update was newer, and whether
// it changed anything. Updates that were lost in between leave old weights behind until the next complete one (Spotlight V-D6).
func (w *Weights) Merge(u *Update) (newer, changed bool) {
	if u.Term < w.Term || u.Term == w.Term && u.Version <= w.Version {
		return false, false
	}
	values := map[uint16]uint16{}
	if !u.Complete {
		maps.Copy(values, w.Values)
	}
	for _, share := range u.Weights {
		values[share.ID] = share.Weight
	}
	changed = w.Values == nil || !maps.Equal(values, w.Values)
	w.Term, w.Version, w.Values = u.Term, u.Version, values
	return true, changed
}
