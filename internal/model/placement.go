package model

// Implementation constants: how much of a client's address places it, with over source. A host has any address of its /64.
const (
	DefaultIPv4Prefix = 32
	DefaultIPv6Prefix = 64
)

// BySource reports whether all connections of a client have the same place.
func (s *Service) BySource() bool { return s.Placement.Over == PlaceSource }

func (p *Placement) applyDefaults() {
	setDefault(&p.IPv4Prefix, 0, DefaultIPv4Prefix)
	setDefault(&p.IPv6Prefix, 0, DefaultIPv6Prefix)
}

// validatePlacement refuses where not the table alone says who gets a client's new connections.
func (s *Service) validatePlacement(path string, found *findings) {
	checkChoice(path+".over", placementNames, s.Placement.Over, found)
	if !s.BySource() {
		return
	}
	at := path + ".over"
	switch {
	case s.Functions():
		found.add(at, "remove it", "network functions see both directions of a connection, and of answers the source is another one")
	case s.Dispatch == DispatchChoices:
		found.add(at, "remove it, or use dispatch: maglev", "the candidates of a client decide by their load who of them accepts, so its connections would have several servers")
	case !s.Dispatch.Placed():
		found.add(at, "remove it, or use dispatch: maglev", "%s looks at no table for new connections", s.Dispatch)
	case s.Session != SessionNone:
		found.add(at, "remove it, or session", "with session: %s a client's connections go to the server of their session", s.Session)
	}
	if s.Placement.IPv4Prefix < 1 || s.Placement.IPv4Prefix > 32 {
		found.add(path+".ipv4_prefix", "use 1 to 32", "%d is out of range", s.Placement.IPv4Prefix)
	}
	if s.Placement.IPv6Prefix < 1 || s.Placement.IPv6Prefix > 128 {
		found.add(path+".ipv6_prefix", "use 1 to 128", "%d is out of range", s.Placement.IPv6Prefix)
	}
}
