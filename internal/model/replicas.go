package model

import (
	"fmt"
	"slices"
	"time"
)

// Replicas is how load balancers keep the replicated table together (Anolis). It is of a fleet; the zero value is that of one without such services.
type Replicas struct {
	Chain       uint8    `json:"chain"`        // L: load balancers that keep an entry. So many less one may fail at once
	IdleTimeout Duration `json:"idle_timeout"` // a connection silent for this long loses its entry
}

// Implementation constants: bounds of replicas.
const (
	MaxChain                  = 4
	DefaultChain              = 2
	MaxReplicaNodes           = 63 // load balancers of a ring: bpf/lb/state/replicas.h has room for their numbers
	MinReplicaIdleTimeout     = Duration(6 * time.Second)
	MaxReplicaIdleTimeout     = Duration(24 * time.Hour)
	DefaultReplicaIdleTimeout = Duration(10 * time.Minute)
)

// Replicated reports whether load balancers keep a replicated table for connections of the service, or for those that carry nothing.
func (s *Service) Replicated() bool {
	return s.Affinity == AffinityReplicated || s.Fallback == FallbackReplicated
}

// Keyed reports whether the service needs the keys of epochs: for what its connections carry, or for messages between load balancers.
func (s *Service) Keyed() bool { return s.Affinity.Keyed() || s.Replicated() }

// Replicated reports whether some service is.
func (f *Fleet) Replicated() bool {
	return slices.ContainsFunc(f.Services, func(s Service) bool { return s.Replicated() })
}

// ApplyDefaults gives what is not set its default.
func (r *Replicas) ApplyDefaults() {
	setDefault(&r.Chain, 0, DefaultChain)
	setDefault(&r.IdleTimeout, 0, DefaultReplicaIdleTimeout)
}

func (f *Fleet) validateReplicas(found *findings) {
	if r := &f.Replicas; *r != (Replicas{}) {
		if r.Chain < 1 || r.Chain > MaxChain {
			found.add("replicas.chain", fmt.Sprintf("use 1 to %d", MaxChain), "%d is out of range", r.Chain)
		}
		checkDuration("replicas.idle_timeout", r.IdleTimeout, MinReplicaIdleTimeout, MaxReplicaIdleTimeout, found)
	}
	for i := range f.Services {
		if s := &f.Services[i]; s.Replicated() && slices.ContainsFunc(f.Nodes, func(n Node) bool { return n.Tier != 0 }) {
			found.add(fmt.Sprintf("services[%d].affinity", i), "use affinity: cookie, or remove the tiers", "load balancers with a tier keep no replicated table")
		}
	}
}

func (s *Service) validateReplicated(path string, found *findings) {
	switch {
	case s.Affinity == AffinityReplicated && s.Fallback != FallbackHash:
		found.add(path+".fallback", "use fallback: hash", "with affinity replicated every connection has an entry; what finds no room goes by hash")
	case s.Fallback == FallbackReplicated && (s.Affinity == AffinityHash || s.Affinity == AffinityLocal):
		found.add(path+".fallback", "use affinity: replicated", "affinity %s leaves nothing to a fallback", s.Affinity)
	case s.Fallback == FallbackReplicated && s.Affinity == AffinityHistory:
		found.add(path+".fallback", "use fallback: second-chance", "with affinity history a packet visits the servers that had its place before")
	}
	if s.Replicated() && s.Dispatch == DispatchChoices {
		found.add(path+".dispatch", "use rr, p2c or another policy", "the load balancer must know the server of a connection to replicate it, and with choices servers decide")
	}
}

// CheckWithoutControllers refuses what load balancers that run by files cannot do: nobody tells them of each other.
func (f *Fleet) CheckWithoutControllers() error {
	for i := range f.Services {
		if s := &f.Services[i]; s.Replicated() {
			path := fmt.Sprintf("services[%d].fallback", i)
			if s.Affinity == AffinityReplicated {
				path = fmt.Sprintf("services[%d].affinity", i)
			}
			return &Invalid{Path: path, Problem: "replicated needs controllers, which announce load balancers to each other",
				Remedy: "run the load balancers by controllers (docs/features/replicas.md), or use affinity: cookie with fallback: second-chance"}
		}
	}
	return f.CheckSourcesWithoutControllers()
}

// CheckSourcesWithoutControllers refuses sources of servers where each host goes by a file of its own. Each would number servers by itself, in the order that
// it hears of them, and cookies name servers by number.
func (f *Fleet) CheckSourcesWithoutControllers() error {
	for i := range f.Services {
		if s := &f.Services[i]; !s.Source.IsZero() {
			return &Invalid{Path: fmt.Sprintf("services[%d].servers.from", i), Problem: fmt.Sprintf("servers from %s need controllers: load balancers by a file would give one server different ids", s.Source.From),
				Remedy: "run the load balancers by controllers, or list the servers with ids: the file is watched"}
		}
	}
	return nil
}
