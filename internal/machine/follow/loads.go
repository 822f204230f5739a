// Loads of servers, which dispatch p2c and least compare.
package follow

// Loads are what servers' loads were last, as whoever decides about the service knows them. Later terms begin anew with versions.
type Loads struct {
	Term, Version uint64
	// Share is the part of the service's connections that the load balancer dispatches, 0 to 1. 0: it is not known.
	Share float64
	// Requests: a load of 1 is a request or a connection of a server of weight 1, so that a new one adds no more.
	Requests bool
	Servers  []Load // that take new connections, by id
}

// Load is of one server, for its size.
type Load struct {
	ID   uint16
	Load float64
}

// Newer reports whether loads are newer than those of a term and version.
func (l *Loads) Newer(term, version uint64) bool { return newer(l.Term, l.Version, term, version) }
