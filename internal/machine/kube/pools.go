package kube

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/ballast-lb/ballast/internal/model"
)

// Pool are addresses that Services get.
type Pool struct {
	Name      string
	Ranges    []Range
	ByRequest bool // only Services that name the pool or an address of it get one
}

// Range are consecutive addresses of one family, both ends included.
type Range struct{ First, Last netip.Addr }

// PoolUse is how full a pool is.
type PoolUse struct {
	Name      string
	Addresses float64 // as many as there are
	Used      int     // by services and hosts
}

// ParseRange reads a prefix, an address, or the first and the last address: 203.0.113.0/28, 203.0.113.8, 203.0.113.8-203.0.113.15. The error
// is *model.Invalid.
func ParseRange(text string) (r Range, err error) {
	invalid := &model.Invalid{Problem: fmt.Sprintf("%q is no range of addresses", text),
		Remedy: "write it like 203.0.113.0/28, 203.0.113.8-203.0.113.15 or 2001:db8::/112"}
	first, last, isRange := strings.Cut(text, "-")
	switch {
	case isRange:
		if r.First, err = netip.ParseAddr(strings.TrimSpace(first)); err == nil {
			r.Last, err = netip.ParseAddr(strings.TrimSpace(last))
		}
	case strings.Contains(text, "/"):
		var prefix netip.Prefix
		if prefix, err = netip.ParsePrefix(text); err == nil {
			if prefix != prefix.Masked() {
				return r, &model.Invalid{Problem: fmt.Sprintf("%s has bits behind its length", text), Remedy: "use " + prefix.Masked().String()}
			}
			r = Range{prefix.Addr(), lastOf(prefix)}
		}
	default:
		r.First, err = netip.ParseAddr(text)
		r.Last = r.First
	}
	if err != nil || r.First.Is4() != r.Last.Is4() || r.Last.Less(r.First) || r.First.Zone() != "" || r.First.Is4In6() {
		return r, invalid
	}
	return r, nil
}

func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// String writes a range as ParseRange reads it.
func (r Range) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// Contains reports whether an address is one of the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && !a.Less(r.First) && !r.Last.Less(a)
}

// Overlaps reports whether two ranges have an address in common.
func (r Range) Overlaps(o Range) bool {
	return r.First.Is4() == o.First.Is4() && !r.Last.Less(o.First) && !o.Last.Less(r.First)
}

// size is the number of addresses.
func (r Range) size() float64 {
	n := 0.0
	first, last := r.First.AsSlice(), r.Last.AsSlice()
	for i := range first {
		n = n*256 + float64(last[i]) - float64(first[i])
	}
	return n + 1
}

// CheckPools refuses pools that make no sense together. The error is *model.Invalid.
func CheckPools(pools []Pool) error {
	names := map[string]bool{}
	for i, pool := range pools {
		at := fmt.Sprintf("pools[%d]", i)
		switch {
		case pool.Name == "":
			return &model.Invalid{Path: at + ".name", Problem: "missing", Remedy: "give it a name"}
		case names[pool.Name]:
			return &model.Invalid{Path: at + ".name", Problem: fmt.Sprintf("%q is also the name of another pool", pool.Name), Remedy: "choose another name"}
		case len(pool.Ranges) == 0:
			return &model.Invalid{Path: at + ".addresses", Problem: "missing", Remedy: "give it addresses, like 203.0.113.0/28"}
		}
		names[pool.Name] = true
		for j, r := range pool.Ranges {
			for k, other := range pools[:i+1] {
				for l, before := range other.Ranges {
					if (k < i || l < j) && r.Overlaps(before) {
						return &model.Invalid{Path: fmt.Sprintf("%s.addresses[%d]", at, j), Problem: fmt.Sprintf("%s and %s have addresses in common", r, before),
							Remedy: "give each address to one pool"}
					}
				}
			}
		}
	}
	return nil
}

// cursor gives the free addresses of a pool's family, the smallest first: what was not free stays so.
type cursor struct {
	ranges []Range
	next   netip.Addr
}

func newCursor(p *Pool, is4 bool) *cursor {
	c := &cursor{}
	for _, r := range p.Ranges {
		if r.First.Is4() == is4 {
			c.ranges = append(c.ranges, r)
		}
	}
	if len(c.ranges) > 0 {
		c.next = c.ranges[0].First
	}
	return c
}

// free returns the next one that is; ok is false when there is none.
func (c *cursor) free(taken func(netip.Addr) bool) (a netip.Addr, ok bool) {
	for len(c.ranges) > 0 {
		a, r := c.next, c.ranges[0]
		if c.next = a.Next(); a == r.Last {
			if c.ranges = c.ranges[1:]; len(c.ranges) > 0 {
				c.next = c.ranges[0].First
			}
		}
		if !taken(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// pool returns the one that has an address, or nil.
func (o *Options) pool(a netip.Addr) *Pool {
	for i := range o.Pools {
		for _, r := range o.Pools[i].Ranges {
			if r.Contains(a) {
				return &o.Pools[i]
			}
		}
	}
	return nil
}

// use is how full the pools are.
func (m *mapping) use() (list []PoolUse) {
	used := map[*Pool]int{}
	for a, holders := range m.taken {
		if len(holders) > 0 {
			used[m.pool(a)]++
		}
	}
	for a := range m.hosts {
		if len(m.taken[a]) == 0 {
			used[m.pool(a)]++
		}
	}
	for i := range m.Options.Pools {
		p := &m.Options.Pools[i]
		one := PoolUse{Name: p.Name, Used: used[p]}
		for _, r := range p.Ranges {
			one.Addresses += r.size()
		}
		one.Addresses = min(one.Addresses, math.MaxFloat64)
		list = append(list, one)
	}
	return list
}
