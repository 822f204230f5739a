package plan

import (
	"fmt"
	"slices"
)

// span is a range of indexes of one table.
type span struct{ base, count uint32 }

// space hands out ranges of one table, first fit. Freed ranges rest until release: a packet may still read them.
type space struct {
	name    string
	free    []span // sorted by base, never adjacent
	resting []span
}

// newSpace manages indexes first..limit-1; index 0 means "none" in most tables.
func newSpace(name string, first, limit uint32) space {
	return space{name: name, free: []span{{first, limit - first}}}
}

func (s *space) take(count uint32) (span, error) {
	if count == 0 {
		return span{}, nil
	}
	for i := range s.free {
		f := &s.free[i]
		if f.count < count {
			continue
		}
		got := span{f.base, count}
		f.base, f.count = f.base+count, f.count-count
		if f.count == 0 {
			s.free = slices.Delete(s.free, i, i+1)
		}
		return got, nil
	}
	return span{}, fmt.Errorf("no room for %d more %s: raise the limit (ballast lb --help) or use fewer", count, s.name)
}

// fits reports whether take would find a range.
func (s *space) fits(count uint32) bool {
	return count == 0 || slices.ContainsFunc(s.free, func(f span) bool { return f.count >= count })
}

// reserve takes a given range, for tables that are found in use. It reports whether the range was free.
func (s *space) reserve(want span) bool {
	if want.count == 0 {
		return true
	}
	for i, f := range s.free {
		if want.base < f.base || want.base+want.count > f.base+f.count {
			continue
		}
		var rest []span
		if before := want.base - f.base; before > 0 {
			rest = append(rest, span{f.base, before})
		}
		if after := f.base + f.count - want.base - want.count; after > 0 {
			rest = append(rest, span{want.base + want.count, after})
		}
		s.free = slices.Replace(s.free, i, i+1, rest...)
		return true
	}
	return false
}

func (s *space) give(back span) {
	if back.count > 0 {
		s.resting = append(s.resting, back)
	}
}

// release makes everything given back available again, after a grace period.
func (s *space) release() {
	if len(s.resting) == 0 {
		return
	}
	all := append(s.free, s.resting...)
	slices.SortFunc(all, func(a, b span) int { return int(a.base) - int(b.base) })
	s.free, s.resting = all[:0:0], nil
	for _, f := range all {
		if last := len(s.free) - 1; last >= 0 && s.free[last].base+s.free[last].count == f.base {
			s.free[last].count += f.count
			continue
		}
		s.free = append(s.free, f)
	}
}

func (s space) clone() space {
	return space{s.name, slices.Clone(s.free), slices.Clone(s.resting)}
}
