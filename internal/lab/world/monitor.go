// What daemons report: servers, weights, health.
package world

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants of health checks.
const (
	CheckInterval = 300 * time.Millisecond
	CheckTimeout  = 300 * time.Millisecond
	CheckRise     = 2
	CheckFall     = 2
	ResumeMax     = 10 * time.Second // until weights and health follow again, at most
)

// Checks is how what the lab has checked is checked.
func Checks(kind model.Check) model.Health {
	return model.Health{Check: kind, Interval: model.Duration(CheckInterval), Timeout: model.Duration(CheckTimeout), Rise: CheckRise, Fall: CheckFall}
}

// Monitor asks the daemons of a rollout.
type Monitor struct{ rollout *Rollout }

// Servers is what a load balancer knows of the servers.
func (m *Monitor) Servers(lb string) ([]*ballastv1.ServerStatus, error) {
	answer, err := m.rollout.Client(lb).Fleet().ListServers(m.rollout.lab.Context, &ballastv1.ListServersRequest{})
	if err != nil {
		return nil, err
	}
	return answer.Servers, nil
}

// Server is what a load balancer knows of server i.
func (m *Monitor) Server(lb string, i int) (*ballastv1.ServerStatus, error) {
	servers, err := m.Servers(lb)
	at := slices.IndexFunc(servers, func(s *ballastv1.ServerStatus) bool { return s.Server.Name == ServerName(i) })
	if err == nil && at < 0 {
		err = fmt.Errorf("%s has no server %d", lb, i)
	}
	if err != nil {
		return nil, err
	}
	return servers[at], nil
}

// Affinities are those that a load balancer runs by, by service.
func (m *Monitor) Affinities(lb string) (map[string]model.Affinity, error) {
	services, err := m.rollout.services(lb)
	found := map[string]model.Affinity{}
	for i := range services {
		found[services[i].Name] = services[i].Affinity
	}
	return found, err
}

// Weights are those that a load balancer dispatches by now, by service and server.
func (m *Monitor) Weights(lb string) (map[string]uint32, error) {
	servers, err := m.Servers(lb)
	if err != nil {
		return nil, err
	}
	weights := map[string]uint32{}
	for _, server := range servers {
		weights[server.Service+"/"+server.Server.Name] = server.Weight
	}
	return weights, nil
}

// AwaitNewWeights waits until a load balancer dispatches by other weights than before.
func (m *Monitor) AwaitNewWeights(lb string, before map[string]uint32, within time.Duration) {
	await.Promised(m.rollout.lab.Context, within, lb+" has new weights", func() error {
		now, err := m.Weights(lb)
		if err == nil && maps.Equal(now, before) {
			err = fmt.Errorf("they are still %v", now)
		}
		return err
	})
}

// AwaitWeights waits until the weights at load balancers change: load is followed.
func (m *Monitor) AwaitWeights(within time.Duration, lbs ...string) {
	for _, lb := range lbs {
		m.AwaitNewWeights(lb, script.Must(m.Weights(lb)), within)
	}
}

// AwaitHealth waits until load balancers hold a server for unhealthy, or no longer.
func (m *Monitor) AwaitHealth(i int, sick bool, lbs ...string) {
	for _, lb := range lbs {
		await.Promised(m.rollout.lab.Context, ResumeMax, fmt.Sprintf("%s was told that server %d is unhealthy: %t", lb, i, sick), func() error {
			servers, err := m.Servers(lb)
			for _, server := range servers {
				if server.Server.Name == ServerName(i) && (server.Health == "unhealthy") != sick {
					return fmt.Errorf("for it the server is %s", server.Health)
				}
			}
			return err
		})
	}
}

// Dispatched is how many connections lb1 and lb2 have given to a server.
func (m *Monitor) Dispatched(i int) (counts []uint64, err error) {
	for _, lb := range []string{LBName(1), LBName(2)} {
		services, err := m.rollout.services(lb)
		if err != nil {
			return nil, err
		}
		given := uint64(0)
		for _, service := range services {
			for _, server := range service.Servers {
				if server.Name == ServerName(i) {
					given += server.Connections
				}
			}
		}
		counts = append(counts, given)
	}
	return counts, nil
}

// Estimated is how many connections of a service load balancers take to be open, all together.
func (m *Monitor) Estimated(service string, lbs ...string) (open int, err error) {
	for _, lb := range lbs {
		servers, err := m.Servers(lb)
		if err != nil {
			return 0, err
		}
		for _, server := range servers {
			if server.Service == service {
				open += int(server.GetConnections())
			}
		}
	}
	return open, nil
}

// EstimatesNothing returns which server a load balancer still takes to have open connections, or nil.
func (m *Monitor) EstimatesNothing(lb string) error {
	servers, err := m.Servers(lb)
	for _, server := range servers {
		if server.GetConnections() != 0 {
			return fmt.Errorf("service %s: server %s has %d", server.Service, server.Server.Name, server.GetConnections())
		}
	}
	return err
}

// Begun is how many connections, or flows of UDP, of a service load balancers have given to its servers, all together.
func (m *Monitor) Begun(service string, lbs ...string) (connections int, err error) {
	for _, lb := range lbs {
		services, err := m.rollout.services(lb)
		if err != nil {
			return 0, err
		}
		for i := range services {
			one := &services[i]
			if one.Name != service {
				continue
			}
			if one.Protocol == model.ProtocolUDP {
				connections += int(one.Verdicts["forwarded_new"].Packets)
				continue
			}
			for k := range one.Servers {
				connections += int(one.Servers[k].Connections)
			}
		}
	}
	return connections, nil
}

// Sent is how many packets of a service load balancers have sent to its servers, all together.
func (m *Monitor) Sent(service string, lbs ...string) (packets uint64, err error) {
	for _, lb := range lbs {
		services, err := m.rollout.services(lb)
		if err != nil {
			return 0, err
		}
		for i := range services {
			for k := 0; services[i].Name == service && k < len(services[i].Servers); k++ {
				packets += services[i].Servers[k].Packets
			}
		}
	}
	return packets, nil
}

// Succeeded is how many connections of all services go on to predecessors, by the estimates of load balancers, all together.
func (m *Monitor) Succeeded(lbs ...string) (connections int, err error) {
	for _, lb := range lbs {
		services, err := m.rollout.services(lb)
		if err != nil {
			return 0, err
		}
		for _, one := range services {
			if one.PredecessorConnections == nil {
				return 0, fmt.Errorf("for %s service %s has no predecessor", lb, one.Name)
			}
			connections += *one.PredecessorConnections
		}
	}
	return connections, nil
}

// LostPredecessors is of how many services a load balancer says, by status and by service, that packets for the predecessor are lost.
func (m *Monitor) LostPredecessors(lb string) (services int, err error) {
	problems, err := m.Problems(lb)
	if err != nil {
		return 0, err
	}
	counted, err := m.rollout.services(lb)
	for _, one := range counted {
		lost := slices.ContainsFunc(one.PredecessorPaths, func(p api.PredecessorPath) bool { return p.Lost != "" })
		named := slices.ContainsFunc(problems, func(problem string) bool {
			return strings.HasPrefix(problem, "service "+one.Name+": predecessor ")
		})
		if lost && named {
			services++
		}
	}
	return services, err
}

// Problems are those that a load balancer has by its own account.
func (m *Monitor) Problems(lb string) ([]string, error) {
	var status api.LBStatus
	err := m.rollout.Client(lb).Get(m.rollout.lab.Context, api.PathStatus, &status)
	return status.Problems, err
}

// AgentStatus asks the agent of a node how it is.
func (m *Monitor) AgentStatus(node string) (status api.AgentStatus, err error) {
	err = m.rollout.Client(node).Get(m.rollout.lab.Context, api.PathStatus, &status)
	return status, err
}

// BGP asks a load balancer for its sessions.
func (m *Monitor) BGP(node string) (status api.BGPStatus, err error) {
	err = m.rollout.Client(node).Get(m.rollout.lab.Context, api.PathBGP, &status)
	return status, err
}

// L2 asks a load balancer which VIPs it owns, and who owns the others.
func (m *Monitor) L2(node string) (status api.L2Status, err error) {
	err = m.rollout.Client(node).Get(m.rollout.lab.Context, api.PathL2, &status)
	return status, err
}

// AwaitOwned waits until a load balancer owns so many VIPs, by its own account.
func (m *Monitor) AwaitOwned(node string, count int) {
	await.Promised(m.rollout.lab.Context, 2*ResumeMax, fmt.Sprintf("%s owns %d VIPs", node, count), func() error {
		status, err := m.L2(node)
		owned := 0
		for _, v := range status.VIPs {
			if v.Owned {
				owned++
			}
		}
		if err == nil && owned != count {
			err = fmt.Errorf("%+v", status)
		}
		return err
	})
}
