// Which servers get packets.
package engine

import "maps"

// activity counts, by server, the reports that showed new packets. serviceState.mutex guards it.
type activity struct {
	packets map[string]map[uint16]uint64 // by load balancer and server, as reported last
	reports map[uint16]uint64
}

// report takes how many packets a load balancer has sent a server.
func (a *activity) report(lb string, id uint16, packets uint64) {
	if a.packets == nil {
		a.packets, a.reports = map[string]map[uint16]uint64{}, map[uint16]uint64{}
	}
	if a.packets[lb] == nil {
		a.packets[lb] = map[uint16]uint64{}
	}
	if before, known := a.packets[lb][id]; !known || before != packets {
		a.packets[lb][id] = packets
		a.reports[id]++
	}
}

// keep forgets all servers but these.
func (a *activity) keep(ids map[uint16]bool) {
	gone := func(id uint16) bool { return !ids[id] }
	for _, packets := range a.packets {
		maps.DeleteFunc(packets, func(id uint16, _ uint64) bool { return gone(id) })
	}
	maps.DeleteFunc(a.reports, func(id uint16, _ uint64) bool { return gone(id) })
}
