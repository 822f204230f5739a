// What nodes report, and what is known of servers.
package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/machine/filtered"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// ServerTraffic is what a load balancer saw of a server since it started.
type ServerTraffic struct {
	Service string
	ID      uint16
	balance.Seen
	Start Start
}

// ServerHealth is what a load balancer found out by checks of a server.
type ServerHealth struct {
	Service string
	ID      uint16
	health.View
}

// Load is what an agent measured.
type Load struct {
	HasCPU      bool
	CPUPermille uint16
	CPUs        float64
	Queues      map[string]Queue // by service
}

// Queue is what an agent measured of one service.
type Queue struct {
	Connections, AcceptQueue uint32
	Mean                     float64 // of both, since the report before
}

// ServerStatus is what is known of a server.
type ServerStatus struct {
	Service string
	Server  model.Server
	Removed bool
	balance.Status
	Health, HealthDetail string
	HealthReported       time.Time // when a load balancer last said how it sees it; zero: not known
	Activity             uint64    // see Engine.Activity
	Agent                string    // "connected" or "none"; empty: it needs none, or it is not known (MarkAgents)
	Start                Start     // zero: it has all of its weight
}

// Traffic takes what a load balancer saw.
func (e *Engine) Traffic(lb string, servers []ServerTraffic) {
	now := time.Now()
	for i := 0; i < len(servers); {
		name := servers[i].Service
		end := i + 1
		for end < len(servers) && servers[end].Service == name {
			end++
		}
		if state := e.service(name); state != nil {
			state.seen(now, lb, servers[i:end])
		}
		i = end
	}
}

// Health takes what a load balancer found out by checks.
func (e *Engine) Health(lb string, servers []ServerHealth) {
	now := time.Now()
	for i := range servers {
		if state := e.service(servers[i].Service); state != nil && state.checked(now, lb, &servers[i]) {
			e.decideSoon(state)
		}
	}
	e.wakeUp()
}

// Losses takes why packets of services are lost at an agent's host, by service: all that it finds. It speaks for the servers that have the
// name or an address of its certificate, and no other.
func (e *Engine) Losses(agent pki.Identity, losses map[string]health.Loss) {
	now := time.Now()
	for _, server := range e.serversOf(&agent) {
		if server.service.found(now, agent.Name, server.id, losses[server.service.name]) {
			e.decideSoon(server.service)
		}
	}
	e.wakeUp()
}

// decideSoon has a service decided about now.
func (e *Engine) decideSoon(state *serviceState) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.services[state.name] == state {
		e.urgent[state] = true
	}
}

// Load takes what an agent measured. It speaks for the servers that have the name or an address of its certificate, and no other.
func (e *Engine) Load(agent pki.Identity, load *Load) {
	now := time.Now()
	for _, server := range e.serversOf(&agent) {
		measured := balance.Report{HasCPU: load.HasCPU, CPUPermille: load.CPUPermille, CPUs: load.CPUs}
		if queue, ok := load.Queues[server.service.name]; ok {
			measured.HasQueue, measured.Connections, measured.AcceptQueue, measured.MeanQueue = true, queue.Connections, queue.AcceptQueue, queue.Mean
		}
		server.service.reportLoad(now, server.id, measured)
	}
}

// Servers returns what is known of the servers of a service, or of all services if it is empty, by service. The second tier is none of these.
func (e *Engine) Servers(service string) (servers []ServerStatus) {
	e.mutex.RLock()
	var services []*serviceState
	for name, state := range e.services {
		if service == name || service == "" && name != model.SecondTierName {
			services = append(services, state)
		}
	}
	e.mutex.RUnlock()
	slices.SortFunc(services, func(a, b *serviceState) int { return cmp.Compare(a.name, b.name) })
	now := time.Now()
	for _, state := range services {
		servers = append(servers, state.status(now)...)
	}
	return servers
}

// Activity counts the reports that showed new packets for a server, removed ones included: as long as it grows somebody speaks to it.
func (e *Engine) Activity(service string, id uint16) uint64 {
	state := e.service(service)
	if state == nil {
		return 0
	}
	state.mutex.Lock()
	defer state.mutex.Unlock()
	return state.activity.reports[id]
}

// ServersOf are the servers that an agent speaks for.
func (e *Engine) ServersOf(agent pki.Identity) (servers []ServerStatus) {
	for _, server := range e.serversOf(&agent) {
		servers = append(servers, server.service.named(server.id)...)
	}
	return servers
}

// Tunnels returns what load balancers see through tunnels of the servers that the agents speak for.
func (e *Engine) Tunnels(agents []pki.Identity) (views []filtered.View) {
	seen := map[entry]bool{}
	for i := range agents {
		for _, server := range e.serversOf(&agents[i]) {
			if !seen[server] {
				seen[server] = true
				views = server.service.tunnels(server.id, views)
			}
		}
	}
	return views
}

// MarkAgents notes, of servers that need an agent whether one that speaks for them is connected.
func (e *Engine) MarkAgents(servers []ServerStatus, agents []pki.Identity) {
	connected := map[entry]bool{}
	for i := range agents {
		for _, server := range e.serversOf(&agents[i]) {
			connected[server] = true
		}
	}
	for i := range servers {
		s := &servers[i]
		state := e.service(s.Service)
		switch {
		case state == nil || !state.needsAgents():
		case connected[entry{state, s.Server.ID}]:
			s.Agent = "connected"
		default:
			s.Agent = "none"
		}
	}
}
