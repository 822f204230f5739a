package plan

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// The two stages of Spotlight IV-B as words that change in place (bpf/lb/dispatch/classes.h):
//
//	[0, classes)                 the classes, the heaviest first: last of the 2^32 numbers that lead to it | members << 32
//	then members words           everybody: who is drawn from while no weight is above 0
//	then members words per class the turns of its members, weight 1 first
//
// Every turn that was ever written names a server that may be chosen, so a packet that reads while words change finds one. Who may be
// chosen changes only with the range as a whole.

func byClasses(dispatch uint8) bool {
	return model.Dispatch(dispatch).ByClasses()
}

func classesOf(s *model.Service) uint8 {
	if s.Dispatch == model.DispatchLCF {
		return 1
	}
	return min(s.Load.Classes, model.MaxClasses)
}

func newClasses(takers []model.Share, classes uint8) []uint64 {
	words := make([]uint64, int(classes)+len(takers)*(int(classes)+1))
	for i, share := range takers {
		words[int(classes)+i] = turn(share.ID, 0)
	}
	return words
}

// consistent reports whether the words are what the row says.
func (img *image) consistent() bool {
	classes, members := int(img.row.Classes), int(img.row.Members)
	if !byClasses(img.row.Dispatch) {
		return true
	}
	return len(img.rounds) == classes+members*(classes+1) &&
		!slices.ContainsFunc(img.rounds[:classes], func(word uint64) bool { return word>>counterShift > uint64(members) })
}

// continues reports whether img can go on in the words of before.
func (img *image) continues(before *image) bool {
	a, b := &img.row, &before.row
	everybody := int(a.Classes) + int(a.Members)
	return byClasses(a.Dispatch) && byClasses(b.Dispatch) && a.Classes == b.Classes && a.Members == b.Members &&
		len(img.rounds) == len(before.rounds) && slices.Equal(img.rounds[a.Classes:everybody], before.rounds[a.Classes:everybody])
}

// reclass returns the words with every server in the class of its weight, at most the heaviest; a server without one is in none. As few
// words as possible differ: one a class, and for each server that moved one where it was and one where it is now.
func reclass(words []uint64, classes uint8, members uint16, weights map[uint16]uint16) []uint64 {
	next := slices.Clone(words)
	everybody := next[classes:][:members]
	region := func(class int) []uint64 { return next[int(classes)+int(members)*class:][:members] }
	count := func(class int) int { return int(next[int(classes)-class] >> counterShift) }
	largest := uint16(0)
	for _, word := range everybody {
		largest = max(largest, turnID(word))
	}
	servers := make([]struct {
		class         uint16
		stays, placed bool
	}, int(largest)+1)
	for _, word := range everybody {
		servers[turnID(word)].class = min(weights[turnID(word)], uint16(classes))
	}
	for class := 1; class <= int(classes); class++ {
		for _, word := range region(class)[:count(class)] {
			if server := &servers[turnID(word)]; int(server.class) == class {
				server.stays = true
			}
		}
	}
	added := make([][]uint64, int(classes)+1)
	for _, word := range everybody {
		if server := servers[turnID(word)]; !server.stays {
			added[server.class] = append(added[server.class], word)
		}
	}
	sum := uint64(0)
	for class := int(classes); class > 0; class-- {
		members := exchange(region(class), count(class), added[class], func(word uint64) bool {
			server := &servers[turnID(word)] // one that is there twice, because an earlier process was stopped between two words, stays once
			keep := int(server.class) == class && !server.placed
			server.placed = server.placed || keep
			return keep
		})
		sum += uint64(class) * uint64(members)
		next[int(classes)-class] = sum | uint64(members)<<counterShift
	}
	for i := range next[:classes] {
		next[i] = next[i]>>counterShift<<counterShift | lastNumber(uint64(uint32(next[i])), sum)
	}
	return next
}

// lastNumber is the last of the numbers below 2^32 that belong to so much of a sum.
func lastNumber(part, sum uint64) uint64 {
	if part == 0 {
		return 0
	}
	return (part<<counterShift+sum-1)/sum - 1
}

// exchange puts added members into the places of those that are not kept, and closes the gaps with the last ones.
func exchange(region []uint64, count int, added []uint64, keep func(word uint64) bool) int {
	for i := 0; i < count; i++ {
		if keep(region[i]) {
			continue
		}
		if len(added) > 0 {
			region[i], added = added[0], added[1:]
			continue
		}
		for count--; count > i; count-- {
			if keep(region[count]) {
				region[i] = region[count]
				break
			}
		}
	}
	return count + copy(region[count:], added)
}

// inPlace returns the changes from one set of words to another: turns before the classes that tell how many there are.
func (p *published) inPlace(want []uint64) (changes []Change) {
	have, classes := p.image.rounds, int(p.image.row.Classes)
	for i := classes; i < len(want); i++ {
		if have[i] != want[i] {
			changes = append(changes, SetTurn{p.rounds.base + uint32(i), want[i] | uint64(p.counters[turnID(want[i])])<<counterShift})
		}
	}
	for i := range classes {
		if have[i] != want[i] {
			changes = append(changes, SetTurn{p.rounds.base + uint32(i), want[i]})
		}
	}
	return changes
}
