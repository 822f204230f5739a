package datapath

// CountLater says whether packets of connections that have an entry may be counted there a few packets later (bpf/steer/later.h), which is
// several times as fast where there are many connections. It holds for this process; at first they may not.
func (lb *LB) CountLater(enabled bool) error {
	value := uint32(0)
	if enabled {
		value = 1
	}
	return lb.objects.LaterEnabled.Set(value)
}
