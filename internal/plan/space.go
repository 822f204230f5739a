package plan

import (
	"errors"
	"fmt"
	"slices"
)

// Names of what flags make room for.
const (
	spaceOfServers = "servers"
	spaceOfSlots   = "table slots"
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
	return span{}, &noRoom{s.name, count}
}

// noRoom is what a space says that is full.
type noRoom struct {
	space string
	count uint32
}

func (e *noRoom) Error() string {
	return fmt.Sprintf("no room for %d more %s: raise the limit (ballast lb --help) or use fewer", e.count, e.space)
}

// withRemedy names the flag of what is full, and the least that would do for these services: one index names none.
func withRemedy(err error, images []image) error {
	var full *noRoom
	if !errors.As(err, &full) {
		return err
	}
	var servers, slots int
	for i := range images {
		servers += len(images[i].servers)
		slots += len(images[i].slots)
	}
	switch full.space {
	case spaceOfServers:
		return fmt.Errorf("no room for %d servers (counted once per service): start the load balancer with --max-servers %d or more, or use fewer", servers, servers+1)
	case spaceOfSlots:
		return fmt.Errorf("no room for %d table slots, twice which changes take: start the load balancer with --max-slots %d or more, or use fewer", slots, 2*slots)
	}
	return err
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
