package spotlight

import "github.com/ballast-lb/ballast/internal/algo/awfd"

// pool is the instances of a service. One carries what it is asked for, up to its capacity: flows that want more share it (Spotlight
// VI-A), and how they do makes no difference to the sum.
type pool struct {
	capacity  []int64 // bytes/s
	load      []int64 // asked for
	sinceNS   []int64 // when the load last changed
	carried   float64 // bytes * 1e9, until sinceNS
	available []awfd.Available
}

// newPool shares a capacity among n instances, of which every other one has twice as much as the rest.
func newPool(n int, total float64) *pool {
	p := &pool{capacity: make([]int64, n), load: make([]int64, n), sinceNS: make([]int64, n), available: make([]awfd.Available, n)}
	sizes := 0.0
	for i := range n {
		sizes += float64(size(i))
	}
	for i := range n {
		p.capacity[i] = int64(total / sizes * float64(size(i)))
	}
	return p
}

// size is the relative capacity of an instance: 1 or 2.
func size(i int) uint16 { return uint16(1 + i%2) }

// add changes the load of an instance.
func (p *pool) add(nowNS int64, i int, rate int64) {
	p.settle(nowNS, i)
	p.load[i] += rate
}

// settle counts what an instance has carried up to now.
func (p *pool) settle(nowNS int64, i int) {
	p.carried += float64(min(p.load[i], p.capacity[i]) * (nowNS - p.sinceNS[i]))
	p.sinceNS[i] = nowNS
}

// restart forgets what has been carried.
func (p *pool) restart(nowNS int64) {
	p.utilization(nowNS, 1)
	p.carried = 0
}

// utilization is Omega of Spotlight's table I over the last periodNS, those since restart: the part of the capacity that carried.
func (p *pool) utilization(nowNS, periodNS int64) float64 {
	total := int64(0)
	for i := range p.capacity {
		p.settle(nowNS, i)
		total += p.capacity[i]
	}
	return p.carried / float64(total) / float64(periodNS)
}

// left is the available capacity A of Spotlight's table I of all instances; the id is the index + 1. It is valid until the next call.
func (p *pool) left() []awfd.Available {
	for i := range p.available {
		p.available[i] = awfd.Available{ID: uint16(i + 1), Capacity: float64(max(p.capacity[i]-p.load[i], 0))}
	}
	return p.available
}
