package replica

import (
	"errors"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

func TestAReconfigurationIsToldThenSyncedThenOver(t *testing.T) {
	// Figure 8.
	config := DefaultConfig(2)
	config.EvenTo = 0
	f := newFleet(t, config, 4)
	f.change(Change{Fail: []uint16{3}})
	var order []Kind
	for len(f.messages) > 0 {
		if kind := f.messages[0].Kind; len(order) == 0 || order[len(order)-1] != kind {
			order = append(order, kind)
		}
		if len(order) == 1 && f.controller.Phase() != Updating {
			t.Errorf("phase %d while nodes are told", f.controller.Phase())
		}
		f.deliver(0)
	}
	want := []Kind{NewView, ViewAck, StartSync, Copy, CopyAck, SyncDone, NewView, ViewAck}
	if !slices.Equal(order, want) {
		t.Errorf("%v, want %v", order, want)
	}
	if f.controller.Phase() != Synced || f.controller.State.Synced != 2 || len(f.controller.State.Lists) != 1 {
		t.Errorf("%+v", f.controller.State)
	}
	for id, node := range f.nodes {
		if view, synced := node.View(); id != 3 && (view != 2 || synced != 2) {
			t.Errorf("node %d has view %d, synced %d", id, view, synced)
		}
	}
}

func TestConnectionsSurviveOneFailureAfterAnother(t *testing.T) {
	f := newFleet(t, DefaultConfig(2), 8)
	for i := range uint64(500) {
		f.packet(uint16(1+i%8), ring.Key(i*0x9e3779b97f4a7c15), Owner(i+1))
	}
	f.deliverAll()
	for failed := uint16(1); failed <= 5; failed++ {
		delete(f.nodes, failed)
		f.change(Change{Fail: []uint16{failed}})
		f.settle()
		for key := range f.answers {
			f.packet(failed+1, key, 9999) // the fleet compares
		}
		f.deliverAll()
	}
	if f.controller.State.Lost != 0 {
		t.Errorf("%d syncs without a common node", f.controller.State.Lost)
	}
}

func TestTheRingIsLevelledOnceAllIsSynced(t *testing.T) {
	f := newFleet(t, DefaultConfig(3), 6)
	for _, change := range []Change{{Fail: []uint16{2}}, {Add: []uint16{7}}, {Fail: []uint16{7}}, {Add: []uint16{8}}, {Add: []uint16{9}}} {
		for _, id := range change.Add {
			f.nodes[id] = NewNode(id, f.config)
		}
		f.change(change)
		f.settle()
		if got := f.controller.List().Imbalance(); got > 1.1 {
			t.Errorf("after %+v: %.3f", change, got)
		}
	}
}

func TestPlannedChangesThatWouldLoseConnectionsAreRefused(t *testing.T) {
	for what, example := range map[string]struct {
		chain, nodes int
		change       Change
		want         error
	}{
		"as few nodes as a chain":         {3, 4, Change{Remove: []uint16{1}}, ErrTooFew},
		"neighbours with chains of two":   {2, 5, Change{Remove: []uint16{1, 2}}, ErrNoCommon},
		"alternate nodes":                 {2, 5, Change{Remove: []uint16{1, 3}}, nil},
		"neighbours with chains of three": {3, 6, Change{Remove: []uint16{1, 2}}, nil},
		"failures":                        {3, 4, Change{Fail: []uint16{1, 2}}, nil},
		"nothing to keep":                 {1, 4, Change{Remove: []uint16{1, 2}}, nil},
	} {
		f := newFleet(t, DefaultConfig(example.chain), example.nodes)
		before := string(f.controller.Append(nil))
		_, err := f.controller.Change(example.change)
		if !errors.Is(err, example.want) || example.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", what, err, example.want)
		}
		if err != nil && string(f.controller.Append(nil)) != before {
			t.Errorf("%s: refused, but something changed", what)
		}
	}
}

func TestChangesThatMakeNoSenseAreRefused(t *testing.T) {
	f := newFleet(t, DefaultConfig(2), 4)
	taken := f.controller.List()[0].At
	for what, change := range map[string]Change{
		"unknown node":   {Fail: []uint16{9}},
		"known node":     {Add: []uint16{4}},
		"no node":        {Add: []uint16{None}},
		"taken position": {AddAt: []ring.Member{{Node: 9, At: taken}}},
	} {
		if _, err := f.controller.Change(change); err == nil {
			t.Errorf("%s: not refused", what)
		}
	}
}

func TestAControllerGoesOnFromWhatItSaved(t *testing.T) {
	f := newFleet(t, DefaultConfig(2), 5)
	f.packet(1, at(9, 10), 77)
	f.deliverAll()
	f.change(Change{Fail: []uint16{5}})
	for range 3 {
		f.controller = NewController(f.config, f.saved)
		f.messages = nil // all is lost, each time
		f.take(f.controller.Retry())
		for range 6 {
			f.deliver(0)
		}
	}
	f.settle()
	if tuple := f.tuple(at(9, 10)); !slices.Equal(tuple, []Owner{77, 77}) {
		t.Errorf("%v", tuple)
	}
}

func TestANewChangeCancelsTheSyncsThatItOvertakes(t *testing.T) {
	config := DefaultConfig(2)
	config.EvenTo = 0
	f := newFleet(t, config, 6)
	f.change(Change{Fail: []uint16{2}})
	first := f.controller.State.Ongoing
	f.change(Change{Restart: []uint16{5}})
	if got := f.controller.State; len(got.Cancelled) != 0 || len(got.Ongoing) != 4 {
		t.Errorf("changes far apart: %+v", got)
	}
	f.nodes[5] = NewNode(5, f.config)
	f.change(Change{Fail: []uint16{4}})
	got := f.controller.State
	if len(got.Cancelled) == 0 || !slices.ContainsFunc(got.Ongoing, func(s ring.Sync) bool { return s.ID == first[0].ID }) {
		t.Errorf("changes close together: %+v", got)
	}
	f.settle()
}

func TestANodeThatIsOutKeepsNothingOfTheChains(t *testing.T) {
	f := newFleet(t, DefaultConfig(2), 4)
	for i := range 40 {
		f.packet(1, at(i, 40), Owner(i+1))
	}
	f.deliverAll()
	f.change(Change{Remove: []uint16{2}})
	f.settle()
	if entries, cached := f.nodes[2].Entries(); entries != 0 || cached != 10 {
		t.Errorf("%d entries, %d cached: want those that it was the tail of, cached", entries, cached)
	}
}
