// Which servers get packets.
package engine

import "maps"

// activity counts, by server, the reports that showed new packets. serviceState.mutex guards it.
type activity struct {
	packets map[uint16]map[string]uint64 // by server and load balancer, as reported last
	reports map[uint16]uint64
}

// report takes how many packets a load balancer has sent a server.
func (a *activity) report(lb string, id uint16, packets uint64) {
	if a.packets == nil {
		a.packets, a.reports = map[uint16]map[string]uint64{}, map[uint16]uint64{}
	}
	if a.packets[id] == nil {
		a.packets[id] = map[string]uint64{}
	}
	if before, known := a.packets[id][lb]; !known || before != packets {
		a.packets[id][lb] = packets
		a.reports[id]++
	}
}

// keep forgets all servers but these.
func (a *activity) keep(ids map[uint16]bool) {
	gone := func(id uint16) bool { return !ids[id] }
	maps.DeleteFunc(a.packets, func(id uint16, _ map[string]uint64) bool { return gone(id) })
	maps.DeleteFunc(a.reports, func(id uint16, _ uint64) bool { return gone(id) })
}
