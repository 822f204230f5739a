package model

// DefaultSYNLimit is Service.SYNLimit of syn_proxy auto: a server of one core accepts some ten thousand connections a second.
const DefaultSYNLimit = 1000

// MaxSYNLimit is the largest Service.SYNLimit.
const MaxSYNLimit = 10_000_000

func (s *Service) validateSYNProxy(path string, found *findings) {
	if s.SYNLimit > MaxSYNLimit {
		found.add(path+".syn_limit", "use less", "%d is out of range, the most is %d", s.SYNLimit, MaxSYNLimit)
	}
	if s.SYNLimit != 0 && s.SYNProxy != SYNProxyAuto {
		found.add(path+".syn_limit", "remove it, or use syn_proxy: auto", "with syn_proxy: %s nothing goes by it", s.SYNProxy)
	}
	if s.SYNProxy == SYNProxyOff {
		return
	}
	at := path + ".syn_proxy"
	checkChoice(at, synProxyNames, s.SYNProxy, found)
	if s.Session != SessionNone {
		found.add(at, "remove it", "with session: %s load balancers answer all SYNs anyway", s.Session)
		return
	}
	s.validateBegun(at, found)
}
