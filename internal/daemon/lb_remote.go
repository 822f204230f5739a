package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/change"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

// remote is a load balancer's side of the controllers: where its desired state is from when it does not run by a file.
type remote struct {
	follower follow.Follower
	checks   map[string][]string // controller -> services that it wants checked
	joined   *nodeclient.Joined
}

// followControllers begins a stream to each controller, until ctx ends.
func (lb *LB) followControllers(ctx context.Context) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	lb.remote.joined = nodeclient.Join(ctx, nodeclient.Options{
		Controllers: lb.options.Controllers, TLS: lb.credentials.Client(), Log: lb.log,
		Hello: func() *ballastv1.Hello {
			return &ballastv1.Hello{Protocol: api.ControlProtocol, Role: string(pki.LB), Name: lb.name, Version: lb.options.Version, Addresses: lb.sources(), Revision: lb.revision()}
		},
		OnState:   lb.toldState,
		OnWeights: lb.onWeights,
		OnChecks:  lb.toldChecks,
		OnSources: func(string, *ballastv1.TunnelSources) {},
		OnLeft:    lb.controllerLeft,
	})
}

// mostSources is how many addresses are told. A host may have more, VIPs for example; controllers take a few times as many of one load
// balancer within a day.
const mostSources = 256

// sources are the addresses that tunnels may come from, at most mostSources: those of ways that were resolved before, then those there are now.
func (lb *LB) sources() (texts []string) {
	local, err := netdev.LocalAddresses()
	if err != nil {
		lb.log.Warn("agents are not told all addresses of this host", "error", err)
	}
	lb.mu.Lock()
	var used []netip.Addr
	for _, path := range lb.paths.Known {
		used = append(used, path.Source)
	}
	lb.mu.Unlock()
	return sourceTexts(used, local)
}

// sourceTexts writes used addresses, then local ones, each once.
func sourceTexts(used, local []netip.Addr) (texts []string) {
	slices.SortFunc(used, netip.Addr.Compare)
	slices.SortFunc(local, netip.Addr.Compare)
	told := map[netip.Addr]bool{}
	for _, address := range slices.Concat(used, local) {
		if address.IsGlobalUnicast() && !told[address] && len(texts) < mostSources {
			told[address], texts = true, append(texts, address.String())
		}
	}
	return texts
}

func (lb *LB) revision() uint64 {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	return lb.remote.follower.Revision
}

func (lb *LB) controllerLeft(controller string) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	lb.remote.follower.Left(controller)
	delete(lb.remote.checks, controller)
}

// toldState takes what a controller says of the desired state, unless another one has said newer things.
func (lb *LB) toldState(controller string, state *ballastv1.State) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if empty := state.Complete && len(state.Services) == 0; !lb.remote.follower.Offer(controller, state.Revision, state.Complete) || empty && (lb.waiting || state.Revision < lb.remote.follower.Revision) {
		if empty {
			lb.remote.follower.Dismiss(controller)
			lb.log.Error("controller knows no service: its store is new or was emptied, the last state goes on", "controller", controller, "revision", state.Revision)
		}
		return
	}
	before, sickBefore, followerBefore, waited := lb.node, lb.unhealthy, lb.remote.follower, lb.waiting
	next, sick, err := adopt(&lb.node, lb.unhealthy, state)
	if err == nil {
		lb.node, lb.unhealthy = next, sick
		lb.remote.follower.Take(state.Revision)
		if lb.waiting = false; waited {
			lb.takeOverWeights()
		}
		err = lb.carryOut(before)
	}
	if err != nil {
		lb.waiting = waited && !lb.cutOff
		lb.node, lb.unhealthy, lb.remote.follower = before, sickBefore, followerBefore
		lb.remote.follower.Refuse(time.Now(), state.Revision)
		lb.file.Error = fmt.Sprintf("state %d of controller %s: %s", state.Revision, controller, err)
		lb.log.Error("state of controller refused, the old state goes on", "controller", controller, "revision", state.Revision, "error", err)
		return
	}
	lb.file = api.Config{Path: "controller " + controller}
	lb.logChanges("controller "+controller, change.Diff(before.Running, lb.node.Running))
	lb.remote.joined.Send(lb.applied())
	if waited {
		lb.attachLate()
		lb.recoverConnections()
	}
}

// applied tells controllers which revision the tables say now. Callers hold mu.
func (lb *LB) applied() *ballastv1.FromNode {
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: lb.remote.follower.Revision}}}
}

// adopt returns the desired state and who is down after a message of a controller.
func adopt(now *node.Node, sickNow map[string]unhealthy, state *ballastv1.State) (next node.Node, sick map[string]unhealthy, err error) {
	next = node.Node{Running: model.Fleet{Keys: now.Running.Keys}, Past: map[string][][]model.Share{}}
	if state.Keys != nil {
		if next.Running.Keys, err = api.KeysFromProto(state.Keys); err != nil {
			return next, nil, err
		}
	}
	sick = map[string]unhealthy{}
	told := make(map[string]bool, len(state.Services)+len(state.Gone))
	for _, gone := range state.Gone {
		told[gone] = true
	}
	for _, s := range state.Services {
		told[s.GetService().GetName()] = true
	}
	if !state.Complete {
		keepUntold(now, sickNow, told, &next, sick)
	}
	var errs []error
	errs = append(errs, adoptNodes(now, sickNow, state, &next, sick))
	for _, s := range state.Services {
		errs = append(errs, adoptService(&next, sick, s))
	}
	if err := errors.Join(errs...); err != nil {
		return next, nil, err
	}
	slices.SortFunc(next.Running.Services, func(a, b model.Service) int { return cmp.Compare(a.Name, b.Name) })
	return next, sick, next.Running.Validate()
}

// keepUntold carries over the services that the message says nothing of.
func keepUntold(now *node.Node, sickNow map[string]unhealthy, told map[string]bool, next *node.Node, sick map[string]unhealthy) {
	for _, s := range now.Running.Services {
		if told[s.Name] {
			continue
		}
		next.Running.Services = append(next.Running.Services, s)
		if past := now.Past[s.Name]; past != nil {
			next.Past[s.Name] = past
		}
		if ids, ok := sickNow[s.Name]; ok {
			sick[s.Name] = ids
		}
	}
	for _, r := range now.Removed {
		if !told[r.Service] {
			next.Removed = append(next.Removed, r)
		}
	}
}

// adoptNodes takes who has a tier. A message that says nothing of it leaves it as it is, unless it tells everything.
func adoptNodes(now *node.Node, sickNow map[string]unhealthy, state *ballastv1.State, next *node.Node, sick map[string]unhealthy) (err error) {
	if state.Nodes == nil {
		if !state.Complete {
			next.Running.Nodes, next.Running.NodeHealth = now.Running.Nodes, now.Running.NodeHealth
			if ids, ok := sickNow[model.SecondTierName]; ok {
				sick[model.SecondTierName] = ids
			}
		}
		return nil
	}
	adoptDown(sick, model.SecondTierName, state.Nodes.Down)
	next.Running.Nodes, next.Running.NodeHealth, err = api.NodesFromProto(state.Nodes)
	return err
}

func adoptDown(sick map[string]unhealthy, service string, down []uint32) {
	if len(down) == 0 {
		return
	}
	ids := make([]uint16, len(down))
	for i, id := range down {
		ids[i] = uint16(id)
	}
	sick[service] = unhealthy{Down: ids}
}

func adoptService(next *node.Node, sick map[string]unhealthy, state *ballastv1.ServiceState) error {
	service, err := api.ServiceFromProto(state.GetService())
	if err != nil {
		return err
	}
	service.ApplyDefaults()
	next.Running.Services = append(next.Running.Services, service)
	for _, removed := range state.Removed {
		server, err := api.ServerFromProto(removed)
		if err != nil {
			return err
		}
		next.Removed = append(next.Removed, node.Removed{Service: service.Name, Server: server})
	}
	past, err := api.PastFromProto(state.Past)
	if err != nil {
		return err
	}
	if past != nil {
		next.Past[service.Name] = past
	}
	adoptDown(sick, service.Name, state.Down)
	return nil
}

// toldChecks replaces what a controller wants checked.
func (lb *LB) toldChecks(controller string, services []string) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	lb.remote.checks[controller] = services
	lb.setChecks()
}

// wantsChecks returns the services that some controller wants this node to check. Callers hold mu.
func (r *remote) wantsChecks() map[string]bool {
	wanted := map[string]bool{}
	for services := range maps.Values(r.checks) {
		for _, service := range services {
			wanted[service] = true
		}
	}
	return wanted
}

// joinAnew asks controllers for everything where what they tell by and by does not lead to their state: one was refused, or older ones
// have to be let in because no controller knows the newer one any more. Callers hold mu.
func (lb *LB) joinAnew(now time.Time) {
	if lb.remote == nil {
		return
	}
	follower := &lb.remote.follower
	switch {
	case follower.Stranded(now):
		lb.log.Warn("no controller knows the revision that runs here: asking those in reach whether theirs is the newest that their store has", "revision", follower.Revision)
		follower.Yield()
		for _, weights := range lb.weights { // their terms are lower, too
			weights.Term, weights.Version = 0, 0
		}
	case follower.Lacks(now):
		lb.log.Info("controllers are asked for the whole state: one was refused", "revision", follower.Revision)
	default:
		return
	}
	lb.remote.joined.Rejoin()
}
