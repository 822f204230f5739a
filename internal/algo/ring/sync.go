package ring

import (
	"slices"
)

// Chains says how chains are made.
type Chains struct {
	Length int // L; a list with fewer members makes chains of all of them
	// TailAfter makes the next node after a key its tail. It is here to show what goes wrong then.
	TailAfter bool
	// Share makes the common nodes of a chain share the copying of a sync. If not, the first of them does it all.
	Share bool
}

// At returns the chain of the keys at a position, head first. It is empty when the list is.
func (c Chains) At(list List, at Position) []Member {
	if len(list) == 0 {
		return nil
	}
	return c.OfArc(list, list.Arc(at))
}

// OfArc returns the chain of the keys from a member to the next.
func (c Chains) OfArc(list List, arc int) []Member {
	if c.TailAfter {
		arc++
	}
	chain := make([]Member, min(c.Length, len(list)))
	for i := range chain {
		chain[len(chain)-1-i] = list[(arc-i+2*len(list))%len(list)]
	}
	return chain
}

// FirstCommon returns the first node of the first chain that is in all others, too: the FCN of section 4.2.
func FirstCommon(chains [][]Member) (Member, bool) {
	if len(chains) == 0 {
		return Member{}, false
	}
	for _, candidate := range chains[0] {
		if !slices.ContainsFunc(chains[1:], func(chain []Member) bool { return !Includes(chain, candidate) }) {
			return candidate, true
		}
	}
	return Member{}, false
}

// Nodes returns the nodes of a chain.
func Nodes(chain []Member) (nodes []uint16) {
	for _, member := range chain {
		nodes = append(nodes, member.Node)
	}
	return nodes
}

// Includes reports whether a node is in a chain.
func Includes(chain []Member, member Member) bool {
	return slices.ContainsFunc(chain, member.Same)
}

// Range is the positions from Low up to, but without, High. The same for both is the whole circle.
//
// Departs from Anolis, whose ranges are without their low end and with the high one: see the package.
type Range struct{ Low, High Position }

// Contains reports whether a position is in a range.
func (r Range) Contains(at Position) bool {
	return r.Low == r.High || at-r.Low < r.High-r.Low
}

// halves divides a range of two positions or more.
func (r Range) halves() (lower, upper Range) {
	size := uint64(r.High - r.Low)
	if size == 0 {
		size = circle
	}
	middle := r.Low + Position(size/2)
	return Range{r.Low, middle}, Range{middle, r.High}
}

// Overlaps reports whether two ranges have a position in common.
func (r Range) Overlaps(other Range) bool { return r.Contains(other.Low) || other.Contains(r.Low) }

// Sync is a share of what makes all nodes of a chain agree about the keys of a range: one node sends its entries to others.
type Sync struct {
	ID    uint32
	Range Range
	Node  uint16 // sender, a common node
	To    Places `json:",omitzero"` // receivers, without the sender
	// Lost says that there is no common node: what the chain knew is gone. Node is then one that has been in the chain for longest.
	Lost bool
}

// Places are those of a chain from First up to, but without, After. The zero value is all of them.
type Places struct{ First, After uint8 }

// Of returns the nodes of a chain at these places. Places beyond its end have no nodes.
func (p Places) Of(chain []uint16) []uint16 {
	if p == (Places{}) {
		return chain
	}
	after := min(int(p.After), len(chain))
	return chain[min(int(p.First), after):after]
}

// ComputeSync returns what has to be synced after a change of the peer list, and which earlier syncs are overtaken by it (figure 9).
// lists are all from the last one that was synced to the current one. ongoing are the syncs that have not been completed. The IDs of
// fresh ones count from nextID. One node added or removed takes exactly L syncs, as long as there are more than L and nothing is shared.
//
// Departs from the listing: its line 7 looks for removed nodes in the *current* chain, where they cannot be; section 4.3.3 means the
// preceding one. Here a range is synced when its chain is not the preceding one. And where the listing cancels a sync that overlaps a
// fresh one, what the fresh ones leave out of its range would never be synced: here it is synced anew, too.
func ComputeSync(chains Chains, lists []List, ongoing []Sync, nextID uint32) (fresh []Sync, cancelled []uint32) {
	if len(lists) < 2 || len(lists[len(lists)-1]) == 0 {
		return nil, nil
	}
	ranges := finestRanges(lists)
	changed := make([]bool, len(ranges))
	overtaken := make([]bool, len(ongoing))
	for i, r := range ranges {
		if changed[i] = chains.changed(lists[len(lists)-2:], r.Low); !changed[i] {
			continue
		}
		for j, sync := range ongoing {
			overtaken[j] = overtaken[j] || sync.Range.Overlaps(r)
		}
	}
	for again := true; again; { // syncs of one chain may have different ranges
		again = false
		for i, r := range ranges {
			overlaps := func(sync Sync) bool { return sync.Range.Overlaps(r) }
			for j, sync := range ongoing {
				changed[i] = changed[i] || overtaken[j] && overlaps(sync)
			}
			for j, sync := range ongoing {
				if changed[i] && !overtaken[j] && overlaps(sync) {
					overtaken[j], again = true, true
				}
			}
		}
	}
	for i, r := range ranges {
		if changed[i] {
			fresh = append(fresh, chains.plan(lists, r)...)
		}
	}
	for i := range fresh {
		fresh[i].ID = nextID + uint32(i)
	}
	for j, sync := range ongoing {
		if overtaken[j] {
			cancelled = append(cancelled, sync.ID)
		}
	}
	return fresh, cancelled
}

// finestRanges divides the circle at all positions of all lists: within each, every list has but one chain.
func finestRanges(lists []List) []Range {
	var cuts []Position
	for _, list := range lists {
		for _, member := range list {
			cuts = append(cuts, member.At)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	ranges := make([]Range, len(cuts))
	for i, low := range cuts {
		ranges[i] = Range{low, cuts[(i+1)%len(cuts)]}
	}
	return ranges
}

// changed reports whether the chain of a position in the second of two lists has not the same nodes as in the first.
func (c Chains) changed(two []List, at Position) bool {
	return !slices.EqualFunc(c.At(two[0], at), c.At(two[1], at), Member.Same)
}

// Since returns, by arc of a list, the version since which its chain is what it is. before is the list before, and since the same of it;
// version is that of the list. Where an arc has parts whose chains are what they are since different versions, it is the newest.
func (c Chains) Since(before List, since []uint32, list List, version uint32) []uint32 {
	all := make([]uint32, len(list))
	if len(list) == 0 {
		return all
	}
	for _, r := range finestRanges([]List{before, list}) {
		known := version
		if len(before) > 0 && !c.changed([]List{before, list}, r.Low) {
			known = since[before.Arc(r.Low)]
		}
		arc := list.Arc(r.Low)
		all[arc] = max(all[arc], known)
	}
	return all
}

// plan returns the syncs of a range.
func (c Chains) plan(lists []List, r Range) []Sync {
	all := make([][]Member, len(lists))
	for i, list := range lists {
		all[i] = c.At(list, r.Low)
	}
	first, ok := FirstCommon(all)
	switch {
	case !ok:
		return []Sync{{Range: r, Node: oldest(all).Node, Lost: true}}
	case c.Share:
		return shares(all, r)
	}
	return []Sync{{Range: r, Node: first.Node}}
}

// oldest returns the node of the last chain that has been in it for longest.
func oldest(all [][]Member) (best Member) {
	longest := 0
	for _, member := range all[len(all)-1] {
		since := 0
		for since < len(all) && Includes(all[len(all)-1-since], member) {
			since++
		}
		if since > longest {
			best, longest = member, since
		}
	}
	return best
}

// shares divides the copying of a range among the common nodes of its chains (4.3.2, "Optimizing step (1)"). These receive nothing. The
// first sends to the nodes before it, the last to those behind it. A node between two common nodes may receive from either: what the later
// one has, the earlier one has, too. Of two in a row, the second may have what a Write that was lost on its way has brought, and the later
// common node has not: the first would never hear of it. Then nothing is shared.
//
// Departs from Anolis, where the later one sends all: here each sends one half of the range, or one of them sends all if the other has
// nodes of its own at that end of the chain. So no node has two shares whose ranges end with the same key.
func shares(all [][]Member, r Range) (syncs []Sync) {
	chain := all[len(all)-1]
	var common []int // places
	for place, member := range chain {
		if !slices.ContainsFunc(all, func(other []Member) bool { return !Includes(other, member) }) {
			common = append(common, place)
		}
	}
	add := func(sender int, r Range, first, after int) {
		syncs = append(syncs, Sync{Range: r, Node: chain[sender].Node, To: Places{uint8(first), uint8(after)}})
	}
	head, tail := common[0], common[len(common)-1]
	apart := false // two nodes or more are between some two of them
	for i, place := range common[1:] {
		apart = apart || place-common[i] > 2
	}
	if head == tail || apart {
		return []Sync{{Range: r, Node: chain[head].Node}}
	}
	behind := tail + 1 // first that the last common node sends the whole range to
	if head > 0 {
		add(head, r, 0, head)
	}
	for i, next := range common[1:] {
		previous := common[i]
		isLast := next == tail && tail+1 < len(chain)
		switch {
		case next == previous+1:
		case isLast && previous == 0:
			add(previous, r, previous+1, next)
		case isLast:
			behind = previous + 1
		case previous == head && head > 0, r.High == r.Low+1:
			add(next, r, previous+1, next)
		default:
			lower, upper := r.halves()
			add(previous, lower, previous+1, next)
			add(next, upper, previous+1, next)
		}
	}
	if tail+1 < len(chain) {
		add(tail, r, behind, len(chain))
	}
	return syncs
}

// Loses reports whether some chain has no common node in all lists.
func (c Chains) Loses(lists []List) bool {
	for _, r := range finestRanges(lists) {
		if slices.ContainsFunc(c.plan(lists, r), func(s Sync) bool { return s.Lost }) {
			return true
		}
	}
	return false
}
