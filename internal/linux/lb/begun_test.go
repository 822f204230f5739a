package lb

import (
	"errors"

	"github.com/cilium/ebpf"
)

// begunPlaces are those where connections have begun.
func (w *world) begunPlaces() (used []uint32) {
	w.Helper()
	places := w.lb.objects.SessionsBegun.MaxEntries()
	keys, sets := make([]uint32, places), make([]lbSessionBegunSet, places)
	if _, err := w.lb.objects.SessionsBegun.BatchLookup(new(ebpf.MapBatchCursor), keys, sets, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		w.Fatal(err)
	}
	for i, set := range sets {
		if set != (lbSessionBegunSet{}) {
			used = append(used, keys[i])
		}
	}
	return used
}

// changeBegun visits the connections that have begun at these places, and writes back what changes.
func (w *world) changeBegun(places []uint32, change func(*lbSessionBegun)) {
	w.Helper()
	for _, place := range places {
		var set lbSessionBegunSet
		mustSet(w.lb.objects.SessionsBegun.Lookup(place, &set))
		was := set
		for way := range set.Ways {
			change(&set.Ways[way])
		}
		if set != was {
			mustSet(w.lb.objects.SessionsBegun.Put(place, set))
		}
	}
}
