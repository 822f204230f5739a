// What is published of a service, and what is asked for.
package engine

import (
	"time"

	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
)

// weightUpdates are those of a service's weights. serviceState.mutex guards them.
type weightUpdates struct {
	version  uint64
	count    uint64
	complete bool              // the next one has all weights
	sent     map[uint16]uint16 // as published last
}

// next returns an update of what is new; nil: nothing is.
func (w *weightUpdates) next(term uint64, shares []model.Share) *follow.Update {
	complete := w.complete || w.count%completeUpdate == 0
	w.count++
	u := &follow.Update{Term: term, Version: w.version + 1, Complete: complete}
	sent := make(map[uint16]uint16, len(shares))
	for _, share := range shares {
		sent[share.ID] = share.Weight
		if before, ok := w.sent[share.ID]; complete || !ok || before != share.Weight {
			u.Weights = append(u.Weights, share)
		}
	}
	w.sent = sent
	if !complete && len(u.Weights) == 0 {
		return nil
	}
	w.complete = false
	w.version++
	return u
}

// requests are when something was asked for last that a later view should have. serviceState.mutex guards them.
type requests struct {
	health time.Time            // Options.Down
	off    map[uint16]time.Time // Options.Off, by server
}
