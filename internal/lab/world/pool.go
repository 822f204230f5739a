// The desired state of a trial's fleet, as an operator edits it: the rollout makes it so.
package world

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/software"
	"github.com/ballast-lb/ballast/internal/model"
)

// The two sides of all BGP sessions, as the configurations of routers have them.
const (
	routerAS    = 64512
	balancerAS  = 64600
	bgpPassword = "lab-secret"
	// BFDDetection is after how long the router holds a load balancer for dead.
	BFDDetection = 600 * time.Millisecond
)

const nodeFall = 4 // checks in a row that fail: a node that a busy machine holds up is not dead

// A Routing is what a router runs. The zero value: it has static routes to all load balancers.
type Routing struct {
	Daemon string // bird or frr
	IPv6   bool   // sessions are over IPv6, and carry VIPs of both families (RFC 8950)
}

// Pool has the servers and the load balancers of a fleet.
type Pool struct {
	*fleet.Fleet
	topology *Topology
	daemons  *Daemons
	random   *rand.Rand
	weights  []uint16 // of servers
	noAgents bool
	gateways bool
}

// AddServer adds a server to every service of the fleet.
func (p *Pool) AddServer(i int) {
	weight := uint16(0)
	if i <= len(p.weights) {
		weight = p.weights[i-1]
	}
	for _, one := range p.Services {
		// Servers are of the VIP's family unless the service's tunnel crosses families.
		one.Add(ServerName(i), i, p.topology.ServerAddress(i, one.VIP.Is6() != one.CrossFamily), weight)
	}
	if !p.noAgents || p.gateways && i <= p.topology.Functions {
		p.daemons.Agents[ServerName(i)] = p.daemons.Agents[ServerName(i)] // a new entry is to be started
	}
}

// RemoveServer takes a server out of every service. Its agent stays as it is: it has connections to end.
func (p *Pool) RemoveServer(i int) {
	for _, one := range p.Services {
		one.Remove(i)
	}
	delete(p.daemons.Agents, ServerName(i))
}

// Drain ends new connections to a server in every service.
func (p *Pool) Drain(i int) {
	for _, one := range p.Services {
		one.Drain(i)
	}
}

// Activate lets a drained server have new connections again, in every service.
func (p *Pool) Activate(i int) {
	for _, one := range p.Services {
		one.Activate(i)
	}
}

// AddKey adds the cookie key of an epoch that nobody writes yet.
func (p *Pool) AddKey(epoch uint32) { p.Keys.Cookie[epoch] = fleet.RandomKey(p.random) }

// AddSecond adds a load balancer to the second tier.
func (p *Pool) AddSecond(i int) {
	node := model.Node{Name: SecondName(i), Tier: model.TierSecond, Address: secondAddress(i).Addr(), ID: uint16(i)}
	p.Nodes = append(p.Nodes, node)
	p.daemons.Second[SecondName(i)] = nil
}

// DrainSecond ends new connections to a load balancer of the second tier.
func (p *Pool) DrainSecond(i int) { p.Node(SecondName(i)).State = model.StateDraining }

// RemoveSecond takes a load balancer out of the second tier. Its daemon hears of nothing any more.
func (p *Pool) RemoveSecond(i int) {
	p.Nodes = slices.DeleteFunc(p.Nodes, func(n model.Node) bool { return n.Name == SecondName(i) })
	delete(p.daemons.Second, SecondName(i))
}

// compose puts what a trial starts with into its fleet.
func (p *Pool) compose(lab *host.Lab, what *Setup) {
	for _, i := range what.Members {
		p.AddServer(i)
	}
	for _, name := range names(LBName, p.topology.LBs) {
		p.daemons.LBs[name] = nil
	}
	if p.topology.Second != 0 {
		p.divideTiers(what.Second)
	}
	if p.topology.Routing.Daemon != "" {
		p.speakBGP(lab)
	}
	if p.topology.Segment {
		for _, name := range names(LBName, p.topology.LBs) {
			p.Nodes = append(p.Nodes, model.Node{Name: name, L2: model.L2{Interface: "eth1", Delay: model.Duration(time.Second)}})
		}
	}
	if what.Gateways {
		p.daemons.agentFlags = append(p.daemons.agentFlags, "--gateway-table", strconv.Itoa(functionTable))
	}
	if what.Tickets {
		p.daemons.agentFlags = append(shareTicketKey(lab, p.random), p.daemons.agentFlags...)
	}
	offered := func(one *fleet.Service) bool { return one.Dispatch == model.DispatchChoices }
	if p.topology.Controllers == 0 && slices.ContainsFunc(p.Services, offered) { // agents know by the file whose tunnels they may take
		for i := range p.topology.LBs {
			for _, address := range fabricAddresses(i + 1) {
				p.TunnelsFrom = append(p.TunnelsFrom, address.Addr())
			}
			if p.topology.Both { // a host's tunnels to itself come from the server's address
				p.TunnelsFrom = append(p.TunnelsFrom, p.topology.ServerAddress(i+1, false), p.topology.ServerAddress(i+1, true))
			}
		}
	}
}

// divideTiers adds the nodes of both tiers.
func (p *Pool) divideTiers(second []int) {
	p.NodeHealth = Checks(model.CheckTCP)
	p.NodeHealth.Port, p.NodeHealth.Fall = metricsPort, nodeFall
	for _, name := range names(LBName, p.topology.LBs) {
		p.Nodes = append(p.Nodes, model.Node{Name: name, Tier: model.TierFirst})
	}
	for _, i := range second {
		p.AddSecond(i)
	}
}

// speakBGP gives load balancers what they need for sessions with the router.
func (p *Pool) speakBGP(lab *host.Lab) {
	for i, name := range names(LBName, p.topology.LBs) {
		secret := filepath.Join(lab.NodeDir(name), "bgp.password")
		script.Check(os.WriteFile(secret, []byte(bgpPassword+"\n"), 0o600))
		_, router := uplinkAddresses(i+1, p.topology.Routing.IPv6)
		balancer, _ := uplinkAddresses(i+1, false)
		p.Nodes = append(p.Nodes, model.Node{Name: name, BGP: model.BGP{
			AS: balancerAS, NeighborAS: routerAS, Neighbors: []model.Neighbor{{Address: router.Addr()}},
			RouterID: model.RouterID{Addr: balancer.Addr()}, PasswordFile: secret, TTLSecurity: 1, ConnectRetry: model.MinConnectRetry,
			Delay: model.Duration(time.Second), BFD: model.BFD{Interval: model.Duration(BFDDetection / model.DefaultBFD)}}})
	}
}

// shareTicketKey makes the key by which all servers encrypt tickets, and returns agents' flags.
func shareTicketKey(lab *host.Lab, random *rand.Rand) []string {
	first, second := fleet.RandomKey(random), fleet.RandomKey(random)
	path := filepath.Join(lab.Dir, "ticket.key")
	script.Checkf(os.WriteFile(path, fmt.Appendf(nil, "%x%x\n", first, second), 0o600), "share the key of session tickets")
	return []string{"--ticket-key", path, "--ticket-group", software.TicketGroup}
}
