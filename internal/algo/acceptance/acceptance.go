// Package acceptance is 6LB's dynamic policy (SRdyn), with which a server accepts about half of the connections that another one could take
// as well. It is the reference for bpf/server/accept/accept.h, which does the same in one word per service.
package acceptance

// Bounds are how many of a window's attempts may be accepted with the limit staying where it is. margin: how far from one half their part
// may be, in percent, 0 to 50.
func Bounds(window uint16, margin uint8) (low, high uint16) {
	least, most := uint32(window)*(50-uint32(margin)), uint32(window)*(50+uint32(margin))
	return uint16((least + 99) / 100), uint16(most / 100)
}

// Dynamic is the state of one service on one server. It is not safe for concurrent use.
type Dynamic struct {
	Window    uint16 // attempts, at least 1
	Low, High uint16 // see Bounds
	Limit     uint32 // connections are accepted while the load is less

	attempts, accepted uint16 // in this window
}

// Accept decides one attempt by the present load, in the load's own unit. After each window the limit follows: up when fewer than Low were
// accepted, down when more than High were, by one, as in 6LB, or, where that is more, by a quarter of the way to the present load. 6LB counts
// a few busy threads; of hundreds of connections, or of percent, single steps would take thousands of attempts.
func (d *Dynamic) Accept(load uint32) bool {
	accept := load < d.Limit
	d.attempts++
	if accept {
		d.accepted++
	}
	if d.attempts < d.Window {
		return accept
	}
	switch {
	case d.accepted < d.Low && d.Limit < ^uint32(0):
		d.Limit += step(d.Limit, load)
	case d.accepted > d.High && d.Limit > 0:
		d.Limit -= step(load, d.Limit)
	}
	d.attempts, d.accepted = 0, 0
	return accept
}

// step is how far the limit moves from one load towards another, greater one.
func step(from, to uint32) uint32 {
	if to <= from {
		return 1
	}
	return max(1, (to-from)/4)
}

// Word is the state as bpf/server/accept/acceptance.h keeps it.
func (d *Dynamic) Word() uint64 {
	return uint64(d.Limit)<<32 | uint64(d.attempts)<<16 | uint64(d.accepted)
}
