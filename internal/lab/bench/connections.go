package bench

// Connection is what the load balancer spends on one connection, in net ns for all packets of its client: the sum of the least
// times of measured cells.
type Connection struct {
	Packets int     // of the client
	Session float64 // session tls: the SYN, the acknowledgement, the hello of a session, then packets with a cookie
	Cookie  float64 // the SYN by rr, then packets with a cookie
	Hash    float64
}

// Connections of increasing length at so many flows; nil: not all of their packets have been measured.
func Connections(cells []Cell, flows uint32) (all []Connection) {
	net, measured := map[string]float64{}, true
	for _, program := range []string{"session-syn", "session-ack", "session-hello", "session-cookie", "syn-rr", "cookie", "hash"} {
		cell, ok := Find(cells, program, flows)
		net[program], measured = cell.NetMinNS, measured && ok
	}
	if !measured {
		return nil
	}
	for _, packets := range []int{5, 10, 50, 100, 400} {
		n := float64(packets)
		all = append(all, Connection{Packets: packets,
			Session: net["session-syn"] + net["session-ack"] + net["session-hello"] + (n-3)*net["session-cookie"],
			Cookie:  net["syn-rr"] + (n-1)*net["cookie"],
			Hash:    n * net["hash"]})
	}
	return all
}
