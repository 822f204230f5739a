package model

import "fmt"

// Implementation constants: what a slot of the placement table has room for, and defaults of choices.
const (
	MaxCandidates     = 4
	MinCandidates     = 2
	DefaultCandidates = 2  // SHELL VI
	MaxHistory        = 4  // owners of one place
	DefaultHistory    = 3  // SHELL VI: 60 downloads over 3 reconfigurations
	DefaultWindow     = 50 // 6LB IV-C
	DefaultMargin     = 10 // 6LB IV-C, percent
)

func (c *Choices) applyDefaults() {
	setDefault(&c.Candidates, 0, DefaultCandidates)
	setDefault(&c.History, 0, DefaultHistory)
	if c.Accept.Policy == AcceptDynamic {
		setDefault(&c.Accept.Threshold, 0, 1)
		setDefault(&c.Accept.Window, 0, DefaultWindow)
		setDefault(&c.Accept.Margin, 0, DefaultMargin)
	}
}

// validateChoices refuses what agents could not do, or would do otherwise than meant.
func (s *Service) validateChoices(path string, found *findings) {
	if s.Dispatch != DispatchChoices {
		return
	}
	switch {
	case s.Affinity == AffinityQUIC:
		found.add(path+".dispatch", "use dispatch: p2c, with load.source: endpoint or cpu",
			"an agent finds the connections that its server has accepted by their sockets, and a QUIC connection has none: the next packet of its client would be offered again")
	case s.Protocol == ProtocolUDP:
		found.add(path+".dispatch", "use dispatch: maglev", "choices offers TCP connections to servers, and udp has none")
	}
	if s.Affinity != AffinityCookie && s.Affinity != AffinityHistory && s.Affinity != AffinityHash && s.Affinity != AffinityQUIC {
		found.add(path+".affinity", "use affinity: cookie or history", "with %s a load balancer chooses the server, and with choices the servers do", s.Affinity)
	}
	if s.Return == ReturnThrough {
		found.add(path+".return", "use return: direct", "choices needs agents on the servers, and return: through has none")
	} else if s.Forward == ForwardL2 || s.Forward == ForwardNAT {
		found.add(path+".forward", "use forward: gue or ipip", "%s has no room for further candidates", s.Forward)
	}
	c := &s.Choices
	path += ".choices"
	if c.Candidates < MinCandidates || c.Candidates > MaxCandidates {
		found.add(path+".candidates", fmt.Sprintf("use %d to %d", MinCandidates, MaxCandidates), "%d is out of range", c.Candidates)
	}
	if c.History < 1 || c.History > MaxHistory {
		found.add(path+".history", fmt.Sprintf("use 1 to %d", MaxHistory), "%d is out of range", c.History)
	}
	path += ".accept"
	checkChoice(path+".policy", acceptNames, c.Accept.Policy, found)
	checkChoice(path+".load", acceptByNames, c.Accept.Load, found)
	if c.Accept.Policy == AcceptStatic && c.Accept.Threshold == 0 {
		found.add(path+".threshold", "give the load from which on a server passes on, or use policy: dynamic", "static has no threshold")
	}
	if c.Accept.Margin >= 50 {
		found.add(path+".margin", "use 1 to 49", "%d percent around a half are all there is", c.Accept.Margin)
	}
	if c.Accept.Load == AcceptByEndpoint && s.Load.Endpoint == "" {
		found.add(path+".load", "give load.endpoint", "no endpoint is asked")
	}
}
