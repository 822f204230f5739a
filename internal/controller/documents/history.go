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
	historyLength = 200
	historyBytes  = 64 << 10 // of lines and comments
	historyLines  = 20       // of one change
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

	Revision uint64 `json:"revision,omitempty"` // of the store after it; 0: not written down yet, see Snapshot.RevisionOf
	Kept     bool   `json:"kept,omitempty"`     // what it changed of the fleet can be put back; older versions do not keep it
	Undo     []int  `json:"undo,omitempty"`     // steps that have a document by which they are
}

// ChangeBy returns a change, as yet empty, by the caller of the API.
func ChangeBy(ctx context.Context) *Change {
	by, _ := api.CallerOf(ctx)
	return &Change{By: by}
}

// With returns the history after a step of a change; revision is that of the document which has h. Who changes nothing that people would look for
// is not listed.
func (h *History) With(c Change, revision uint64) History {
	next := History{Last: mark(c.ID, c.Step), Changes: slices.Clone(h.Changes)}
	if last := len(next.Changes) - 1; last >= 0 && next.Changes[last].isLast(h) {
		next.Changes[last].Revision = revision
	}
	if len(c.Changes) == 0 {
		return next
	}
	c.Changes = Summary(c.Changes)
	next.Changes = append(slices.DeleteFunc(next.Changes, func(old Change) bool { return old.ID == c.ID }), c)
	next.Changes = next.Changes[max(0, len(next.Changes)-historyLength):]
	size := 0
	for i := len(next.Changes) - 1; i >= 0; i-- {
		size += len(next.Changes[i].By.Comment)
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

// isLast reports whether the change is what was done last.
func (c *Change) isLast(h *History) bool { return h.Last == mark(c.ID, c.Step) }

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
	// Room for the history, for what undoes the step, and for two that undid others and go.
	most.Documents, most.Bytes = most.Documents-4, most.Bytes-2*historyBytes-undoBytes
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
