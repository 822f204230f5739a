// Open connections, as agents count them.
package follow

// Counts are how many connections of a service are open on its servers, as agents said last. Later terms begin anew with versions.
type Counts struct {
	Term, Version uint64
	// Share is the part of the service's connections that the load balancer dispatches, 0 to 1. 0: it is not known, so that its
	// connections are at most all of them.
	Share   float64
	Servers []Count // that were counted of late, by id
}

// Count is of one server.
type Count struct {
	ID   uint16
	Open uint32
}

// Newer reports whether counts are newer than those of a term and version.
func (c *Counts) Newer(term, version uint64) bool {
	return newer(c.Term, c.Version, term, version)
}

func newer(term, version, thanTerm, thanVersion uint64) bool {
	return term > thanTerm || term == thanTerm && version > thanVersion
}
