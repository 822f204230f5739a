// The last changes of the fleet, and the steps that a large one is made in.
package documents

import (
	"context"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants of the history.
const (
	historyLength = 100
	historyBytes  = 64 << 10
	historyLines  = 20 // of one change
)

// History tells the last changes of the fleet. Every change compares it and writes it, so no two are made of the same
// state: each may make sense by itself where both together do not.
type History struct {
	Last    string   `json:"last"` // id and step of the last change
	Changes []Change `json:"changes"`
}

// Change is what somebody did.
type Change struct {
	ID      string     `json:"id"`             // of this attempt
	Step    int        `json:"step,omitempty"` // that it has come to
	Time    time.Time  `json:"time"`
	By      api.Caller `json:"by"`
	Changes []string   `json:"changes"`
}

// ChangeBy returns a change, as yet empty, by the caller of the API.
func ChangeBy(ctx context.Context) *Change {
	by, _ := api.CallerOf(ctx)
	return &Change{By: by}
}

// With returns the history after a step of a change. Who changes nothing that people would look for is not listed.
func (h *History) With(c Change) History {
	next := History{Last: mark(c.ID, c.Step), Changes: slices.Clone(h.Changes)}
	if len(c.Changes) == 0 {
		return next
	}
	c.Changes = Summary(c.Changes)
	next.Changes = append(slices.DeleteFunc(next.Changes, func(old Change) bool { return old.ID == c.ID }), c)
	next.Changes = next.Changes[max(0, len(next.Changes)-historyLength):]
	size := 0
	for i := len(next.Changes) - 1; i >= 0; i-- {
		for _, line := range next.Changes[i].Changes {
			size += len(line)
		}
		if size > historyBytes {
			next.Changes = slices.Clone(next.Changes[i+1:])
			break
		}
	}
	return next
}

// Has reports whether a step of a change was carried out. known is false if the history, which followed before, may
// have forgotten it.
func (h *History) Has(id string, step int, before *History) (done, known bool) {
	if h.Last == mark(id, step) {
		return true, true
	}
	kept := len(before.Changes) == 0 && len(h.Changes) < historyLength
	for i := range h.Changes {
		if c := &h.Changes[i]; c.ID == id {
			return c.Step >= step, true
		}
		kept = kept || len(before.Changes) > 0 && h.Changes[i].ID == before.Changes[len(before.Changes)-1].ID
	}
	return false, kept
}

func mark(id string, step int) string { return fmt.Sprintf("%s/%d", id, step) }

// Summary keeps logs short.
func Summary(changes []string) []string {
	if len(changes) <= historyLines {
		return changes
	}
	return append(slices.Clone(changes[:historyLines]), fmt.Sprintf("and %d more", len(changes)-historyLines))
}

// Steps divides what is changed into what there is room for at once. Whatever stops between two of them must leave a
// fleet that makes sense.
func Steps(s *Snapshot, documents []store.Document, most store.Limits) (steps [][]store.Document, err error) {
	most.Documents, most.Bytes = most.Documents-1, most.Bytes-2*historyBytes // room for the history
	for first := 0; first < len(documents); {
		end, size := first, 0
		for end < len(documents) && end-first < most.Documents {
			if size += len(documents[end].Key) + len(documents[end].Value); size > most.Bytes && end > first {
				break
			}
			end++
		}
		for end < len(documents) && end-first > 1 && documents[end-1].Value == nil { // what takes its place may follow
			end--
		}
		steps = append(steps, documents[first:end])
		first = end
	}
	if len(steps) < 2 {
		return steps, nil
	}
	between := s.Clone()
	for i, step := range steps[:len(steps)-1] {
		for _, document := range step {
			if err := between.Take(document, s.Revision); err != nil {
				return nil, err
			}
		}
		fleet := between.Fleet()
		if err := fleet.Validate(); err != nil {
			return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf(
				"the change is too large for one transaction of the store, and after %d of %d steps the fleet would contradict itself: %w: make it in parts, each of which makes sense",
				i+1, len(steps), err))
		}
	}
	return steps, nil
}
