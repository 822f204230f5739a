// How the load balancer is: what keeps it from its work, and what is not as wanted.
package lb

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/report"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/machine/pathmtu"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// observer tells how it is. It waits for no change.
type observer struct{ *changes }

// notReady is what keeps this node from forwarding, empty: it is ready. Who answers for a VIP in the network may go by it. A refused file,
// servers that are unhealthy and the loss of controllers are not among them: what was known goes on.
func (o observer) notReady() []string {
	return o.obstacles(o.tables.Now(), o.programs.status())
}

func (o observer) obstacles(now *dataplane.Snapshot, programs attachedTo) (found []string) {
	losing, _ := o.programs.exits.Split(now.LeavesBy)
	found = slices.Concat(programs.problems, losing, tierProblems(now))
	if programs.allDown {
		found = append(found, programs.down...)
	}
	outcome := o.outcome.Load()
	switch {
	case !now.Followed && !now.Incomplete:
		return append(found, "no controller has sent a state yet, and no state was kept: what an earlier process left is left unchanged")
	case len(now.Places) > 0:
	case o.controllers != nil && outcome.revision == 0:
		found = append(found, "no controller has sent a state yet, and no state was kept")
	default:
		found = append(found, "there is no service to forward for")
	}
	if outcome.stale {
		found = append(found, "the file is refused, and what is forwarded by is of before the last reboot: look whether it is still right")
	}
	if now.Incomplete {
		found = append(found, "the tables are behind the desired state: a change was carried out only in part")
	}
	if pathless := now.Unconfirmed(); pathless > 0 {
		found = append(found, "no way is known to any of "+model.Counted(pathless, "server", "servers"))
	}
	if why := o.checks.Misreads(now); why != "" {
		found = append(found, why)
	}
	if why := o.l2.NotReady(); why != "" {
		found = append(found, why)
	}
	if o.controllers != nil {
		found = append(found, takenFromHost(&o.options, now)...)
		if why := o.replication.NotReady(); why != "" {
			found = append(found, why)
		}
	}
	return append(found, unnamedSources(now)...)
}

func (o observer) status() api.LBStatus {
	now, programs, outcome := o.tables.Now(), o.programs.status(), o.outcome.Load()
	stops := o.obstacles(now, programs)
	status := api.LBStatus{
		Status: api.Status{Role: "lb", Ready: len(stops) == 0, NotReady: stops, Version: o.options.Version, ByControllers: o.controllers != nil,
			Config: outcome.config, Generation: now.Generation},
		Interfaces: programs.modes, Name: o.name,
	}
	_, avoided := o.programs.exits.Split(now.LeavesBy)
	var failing []string
	if o.judges() == nil {
		failing = overruled(now, o.checks.Results())
	}
	status.Problems = slices.Concat(stops, avoided, programs.ahead, o.tables.Unreachable(time.Now()), o.tables.Unreported(time.Now()), o.tables.LostPredecessors(time.Now()), o.tables.Late(time.Now()), o.checks.Problems(now), failing, unrecognised(now), notServedHere(now), o.bgp.Problems(), o.l2.Problems(), o.liveness.Problems())
	status.Filtered = o.checks.Filtered(now, o.name)
	for _, cause := range status.Filtered {
		status.Problems = append(status.Problems, cause.Problem())
	}
	if !programs.allDown {
		status.Problems = append(status.Problems, programs.down...)
	}
	if outcome.unsaved != "" {
		status.Problems = append(status.Problems, outcome.unsaved)
	}
	if o.credentials != nil {
		status.Problems = append(status.Problems, o.credentials.Warnings(time.Now())...)
	}
	if o.revocations != nil {
		status.Problems = append(status.Problems, o.revocations.Problems()...)
		status.Problems = append(status.Problems, o.renewal.Problems()...)
	}
	slices.Sort(status.Problems[len(stops):])
	var err error
	if status.Tier, err = o.tierStatus(now); err != nil {
		status.Problems = append(status.Problems, err.Error())
	}
	status.SYNProxy = o.synProxy.On()
	if o.controllers != nil {
		status.Replicas = o.replication.Status()
		status.Problems = append(status.Problems, o.replication.Problems()...)
		status.Revision = outcome.revision
		status.Controllers = o.controllers.Connected()
		if problem := o.controllers.Problem(status.Ready); problem != "" {
			status.Problems = append(status.Problems, problem)
		}
		if since := outcome.alone; !since.IsZero() {
			status.JudgesAlone = true
			status.Problems = append(status.Problems, aloneSince+since.UTC().Format(time.RFC3339))
		}
	}
	status.Problems = append(status.Problems, now.Unserved()...) // what any of the others may have caused
	return status
}

// unnamedSources are addresses of this load balancer that the file does not name: agents that run by it drop all that it sends.
func unnamedSources(now *dataplane.Snapshot) (problems []string) {
	fleet := &now.Running
	if len(fleet.TunnelsFrom) == 0 {
		return nil
	}
	lacking := map[netip.Addr]netip.Addr{} // address of ours -> a server that is reached from it
	for i := range fleet.Services {
		s := &fleet.Services[i]
		if !s.Forward.Tunnels() || now.SendsToNodes(s) {
			continue
		}
		for j := range s.Servers {
			to := s.Servers[j].Address
			if path, known := now.Paths[to]; known && !slices.Contains(fleet.TunnelsFrom, path.Source) {
				lacking[path.Source] = to
			}
		}
	}
	for _, from := range slices.SortedFunc(maps.Keys(lacking), netip.Addr.Compare) {
		problems = append(problems, fmt.Sprintf("tunnels_from lacks %s, which packets to %s come from: agents drop them: add it to the file on all nodes", from, lacking[from]))
	}
	return problems
}

// unrecognised are network functions that have a next hop in common: nobody could tell whose a packet is that they send.
func unrecognised(now *dataplane.Snapshot) (problems []string) {
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		if !s.Functions() {
			continue
		}
		named := map[[6]byte][]string{}
		for j := range s.Servers {
			if path, known := now.Paths[s.Servers[j].Address]; known && s.Servers[j].State != model.StateOff {
				named[path.DestinationMAC] = append(named[path.DestinationMAC], s.Servers[j].Name)
			}
		}
		for mac, names := range named {
			if len(names) > 1 {
				problems = append(problems, fmt.Sprintf("service %s: functions %s are all reached by %s: what they send is not recognised: put them on a link of this load balancer",
					s.Name, strings.Join(names, ", "), net.HardwareAddr(mac[:])))
			}
		}
	}
	return problems
}

// notServedHere are servers on this host that get no packets of a service.
func notServedHere(now *dataplane.Snapshot) (problems []string) {
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		if plan.ServesHere(s) {
			continue
		}
		for j := range s.Servers {
			server := &s.Servers[j]
			if server.State != model.StateOff && now.Paths[server.Address].Here {
				problems = append(problems, fmt.Sprintf("service %s: server %s is this host, and its packets are lost: it needs forward ipip, gue or srv6, return direct, and no session",
					s.Name, server.Name))
			}
		}
	}
	return problems
}

// tierProblems are what keeps the first tier's packets from arriving here.
func tierProblems(now *dataplane.Snapshot) []string {
	address := now.ThisNode().Address
	if !address.IsValid() {
		return nil
	}
	if local, err := netdev.LocalAddresses(); err != nil || slices.Contains(local, address) {
		return nil
	}
	return []string{fmt.Sprintf("node %s: its address %s is none of this host's: what the first tier sends there does not arrive", now.Self, address)}
}

// tierStatus is nil for a node that has no tier.
func (o observer) tierStatus(now *dataplane.Snapshot) (*api.TierStatus, error) {
	here := now.ThisNode()
	if here.Tier == 0 {
		return nil, nil
	}
	status := &api.TierStatus{Tier: here.Tier, ID: here.ID, Address: here.Address}
	second := now.SecondTier()
	if second == nil {
		return status, nil
	}
	states := o.nodeHealth(now, second)
	for i := range second.Servers {
		server := &second.Servers[i]
		node := api.SecondTierNode{Node: *now.Running.Node(server.Name), Health: states[server.ID].state, HealthDetail: states[server.ID].detail,
			Path: now.DescribePath(server.Address)}
		for j := range now.Running.Services {
			place := now.Places[now.Running.Services[j].Name]
			if !place.Nodes {
				continue
			}
			traffic, _, err := now.Traffic(false, place, server.ID)
			if err != nil {
				return nil, err
			}
			node.Packets += traffic.Packets
			node.Bytes += traffic.Bytes
		}
		status.Second = append(status.Second, node)
	}
	return status, nil
}

type judgedState struct{ state, detail string }

// nodeHealth tells what is known of the nodes of the second tier, by id.
func (o observer) nodeHealth(now *dataplane.Snapshot, second *model.Service) map[uint16]judgedState {
	states := map[uint16]judgedState{}
	if judge := o.judges(); judge != nil {
		for _, s := range judge.Servers(model.SecondTierName) {
			states[s.Server.ID] = judgedState{s.Health, s.HealthDetail}
		}
		return states
	}
	failing := now.FailingOf(model.SecondTierName)
	for i := range second.Servers {
		id := second.Servers[i].ID
		switch {
		case failing[id]:
			states[id] = judgedState{state: health.Unhealthy}
		case second.Health.Check == model.CheckNone:
			states[id] = judgedState{state: health.Unchecked}
		default:
			states[id] = judgedState{state: health.Unknown}
		}
	}
	return states
}

// condition is what this node reports to controllers: they know themselves whether they are connected.
func (o observer) condition() *ballastv1.Condition {
	status := o.status()
	if status.Config.Error != "" {
		status.Problems = append(status.Problems, status.Config.Error)
	}
	return &ballastv1.Condition{Announcements: o.announcements(), Predecessors: o.tables.Now().AllPredecessorConnections(), Ready: status.Ready, Problems: status.Problems, Paths: pathMTUs(o.tables.Now()), Addresses: o.sources(), Own: sourceTexts(append(o.tables.Sources(), o.replication.OwnAddress().Addr()), nil)}
}

// pathMTUs are what packets to servers may have: of nearly all servers it is the same. Those to a server of this host pass no device.
func pathMTUs(now *dataplane.Snapshot) *ballastv1.PathMTUs {
	servers := map[uint16]int{}
	for server := range now.Receivers() {
		if path, known := now.Paths[server.Address]; known && !path.Here {
			servers[path.MTU]++
		}
	}
	sent := &ballastv1.PathMTUs{}
	for mtu, count := range servers { // the smaller of two that as many have
		if most := servers[uint16(sent.Most)]; count > most || count == most && uint32(mtu) < sent.Most {
			sent.Most = uint32(mtu)
		}
	}
	for server := range now.Receivers() {
		path, known := now.Paths[server.Address]
		if path.Here {
			path.MTU = 0
		}
		if !known || uint32(path.MTU) == sent.Most {
			continue
		}
		if sent.Others == nil {
			sent.Others = map[string]uint32{}
		}
		if len(sent.Others) == pathmtu.OthersMax {
			sent.Most = 0 // whose it is would not be known
			break
		}
		sent.Others[server.Address.String()] = uint32(path.MTU)
	}
	return sent
}

// announcements are nil without BGP and L2.
func (o observer) announcements() *ballastv1.Announcements {
	sent := &ballastv1.Announcements{}
	if status := o.l2.Status(); status != nil {
		for _, vip := range status.VIPs {
			if vip.Owned {
				sent.Vips = append(sent.Vips, vip.VIP.String())
			}
		}
		return sent
	}
	status := o.bgp.Status()
	if status == nil {
		return nil
	}
	for _, vip := range status.VIPs {
		if len(vip.To) > 0 {
			sent.Vips = append(sent.Vips, vip.VIP.Addr().String())
		}
	}
	return sent
}

func (o observer) services() ([]api.ServiceStatus, error) {
	return report.Services(o.tables.Now(), o.clocks.NoCookie)
}
