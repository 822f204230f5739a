package model

// What SourceLimit may say: buckets count in 256 ns, and are owed 1000 s at most.
const (
	MaxSourceRate      = 100_000
	MaxSourceBurstTime = 1000 // seconds
	MaxSourcePrefix    = 64   // bits of IPv6
)

// SourceLimit is how many new connections one source may begin, at each load balancer and VIP. The zero value: any number.
type SourceLimit struct {
	Rate       uint32 `json:"rate,omitempty"`        // connections per second
	Burst      uint32 `json:"burst,omitempty"`       // connections at once
	IPv4Prefix uint8  `json:"ipv4_prefix,omitempty"` // bits of an address that are its source
	IPv6Prefix uint8  `json:"ipv6_prefix,omitempty"`
}

func (l *SourceLimit) applyDefaults() {
	setDefault(&l.Burst, 0, l.Rate)
	setDefault(&l.IPv4Prefix, 0, DefaultIPv4Prefix)
	setDefault(&l.IPv6Prefix, 0, DefaultIPv6Prefix)
}

// validateSourceLimit refuses services whose packets do not say when a connection begins.
func (s *Service) validateSourceLimit(path string, found *findings) {
	l := &s.SourceLimit
	if *l == (SourceLimit{}) {
		return
	}
	at := path + ".rate"
	switch {
	case l.Rate == 0:
		found.add(at, "name the connections per second, or remove source_limit", "without a rate there is no limit")
		return
	case l.Rate > MaxSourceRate:
		found.add(at, "use less", "%d is out of range, the most is %d", l.Rate, MaxSourceRate)
	case s.Affinity == AffinityQUIC:
		found.add(at, "remove it, and have servers limit clients (Retry, RFC 9000 8.1)", "a client can show one connection id in the first packet of any number of connections")
	case s.Protocol == ProtocolUDP && s.Affinity == AffinityHash:
		found.add(at, "use affinity: local-table", "with affinity: hash no datagram is the first of anything")
	}
	s.validateBeginnings(at, found)
	if limit := uint64(l.Rate) * MaxSourceBurstTime; l.Burst < 1 || uint64(l.Burst) > limit {
		found.add(path+".burst", "use 1 to as many as the rate is in 1000 s", "%d is out of range with rate %d", l.Burst, l.Rate)
	}
	if l.IPv4Prefix < 1 || l.IPv4Prefix > 32 {
		found.add(path+".ipv4_prefix", "use 1 to 32", "%d is out of range", l.IPv4Prefix)
	}
	if l.IPv6Prefix < 1 || l.IPv6Prefix > MaxSourcePrefix {
		found.add(path+".ipv6_prefix", "use 1 to 64: a host has any address of its /64", "%d is out of range", l.IPv6Prefix)
	}
}
