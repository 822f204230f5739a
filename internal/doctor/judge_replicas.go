package doctor

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// peers are the other load balancers that this one replicates entries with.
func (f *facts) peers() []api.ReplicaPeer {
	if f.Role != RoleLB || f.Daemon.Replicas == nil {
		return nil
	}
	return f.Daemon.Replicas.Peers
}

// judgeReplicas is about the table that load balancers replicate.
func judgeReplicas(f *facts) (out []Finding) {
	if f.Role != RoleLB || !f.File.Fleet.Replicated() || !f.Daemon.ByControllers {
		return nil
	}
	r := f.Daemon.Replicas
	if r == nil || r.Version == 0 {
		fleet := f.File.Fleet
		fleet.Replicas.ApplyDefaults()
		return []Finding{{"replicas", f.Name, Problem, "there is no ring of load balancers: replicated services go by hash",
			fmt.Sprintf("start at least %d load balancers, and see `ballast ctl replica list`", fleet.Replicas.Chain+1)}}
	}
	ring, good := 0, 0
	if r.OnRing {
		ring++
	}
	for _, peer := range r.Peers {
		if !peer.OnRing {
			continue
		}
		ring++
		path := f.Paths[peer.Address.Addr()]
		if path.Err != nil {
			out = append(out, Finding{"replicas", peer.Name, Problem, "no way to it: " + path.Err.Error(), fmt.Sprintf("ip route add %s via ROUTER, or start the load balancer", peer.Address.Addr())})
			continue
		}
		if peer.State == "silent" {
			out = append(out, Finding{"replicas", peer.Name, Problem, "its data path does not answer: packets that ask it are lost",
				fmt.Sprintf("let UDP port 6080 pass between load balancers; name the device of %s with its --interface, or its address with --peer-address", peer.Address.Addr())})
			continue
		}
		found := judgeRoom(peer.Name, path.MTU, plan.PeerOverhead(peer.Address.Addr()), plan.ClientHeaders(false))
		if out = append(out, found...); len(found) == 0 {
			good++
		}
	}
	if ring <= r.Chain {
		out = append(out, Finding{"replicas", f.Name, Warning, fmt.Sprintf("%s on the ring, chains have %d: when one more fails connections may move",
			model.Counted(ring, "load balancer is", "load balancers are"), r.Chain),
			"start more load balancers, and see `ballast ctl replica list`"})
	}
	if good > 0 {
		out = append(out, ok("replicas", f.Name, "%s packets of %d bytes", model.Counted(good, "other load balancer answers, and takes", "other load balancers answer, and take"), clientMTU))
	}
	return out
}
