package daemon

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

// remote is a load balancer's side of the controllers: where its desired state is from when it does not run by a file.
type remote struct {
	*nodeclient.Client
	checks map[string][]string // controller -> services that it wants checked
}

// newClient returns streams that begin with Run.
func (lb *LB) newClient() *nodeclient.Client {
	return nodeclient.NewClient(nodeclient.Options{
		Controllers: lb.options.Controllers, TLS: lb.credentials.Client(), Log: lb.log,
		Hello: func() *ballastv1.Hello {
			return &ballastv1.Hello{Protocol: api.ControlProtocol, Role: string(pki.LB), Name: lb.name, Version: lb.options.Version, Addresses: lb.sources()}
		},
		OnState:   lb.onState,
		OnWeights: lb.onWeights,
		OnChecks:  lb.onChecks,
		OnLeft: func(controller string) {
			lb.mu.Lock()
			defer lb.mu.Unlock()
			delete(lb.remote.checks, controller)
		},
	})
}

// mostSources is how many addresses are told. A host may have more, VIPs for example; controllers take a few times as many of one load
// balancer within a day.
const mostSources = 256

// sources are the addresses that tunnels may come from, at most mostSources: those of ways that were resolved before, then those there are now.
func (lb *LB) sources() (texts []string) {
	local, err := netdev.LocalAddresses()
	if err != nil {
		lb.log.Warn("agents do not learn all addresses of this host", "error", err)
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

// onState takes what a controller says of the desired state, unless another one has said newer things.
func (lb *LB) onState(controller string, state *ballastv1.State) {
	err := lb.remote.Follow(controller, state, func() error { return lb.adopt(controller, state) })
	if errors.Is(err, nodeclient.ErrKnowsNothing) {
		lb.log.Error("controller knows no service: its store is new or was emptied, the last state goes on", "controller", controller, "revision", state.Revision)
	}
}

// adopt carries a state out, or goes on with the old one.
func (lb *LB) adopt(controller string, state *ballastv1.State) error {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if lb.waiting && nodeclient.KnowsNothing(state) {
		return nodeclient.ErrKnowsNothing
	}
	before, revision, waited := nodeclient.State{Node: lb.node, Unhealthy: lb.unhealthy}, lb.revision, lb.waiting
	next, err := before.After(state)
	if err == nil {
		lb.node, lb.unhealthy, lb.revision = next.Node, next.Unhealthy, state.Revision
		if lb.waiting = false; waited {
			lb.takeOverWeights()
		}
		err = lb.carryOut(before.Node)
	}
	if err != nil {
		lb.waiting = waited && !lb.applyIncomplete
		lb.node, lb.unhealthy, lb.revision = before.Node, before.Unhealthy, revision
		lb.file.Error = fmt.Sprintf("state %d of controller %s: %s", state.Revision, controller, err)
		return err
	}
	lb.file = api.Config{Path: "controller " + controller}
	lb.logChanges("controller "+controller, node.Diff(before.Running, lb.node.Running))
	lb.remote.Send(lb.applied())
	if waited {
		lb.attachLate()
		lb.recoverConnections()
	}
	return nil
}

// applied tells controllers which revision the tables say now. Callers hold mu.
func (lb *LB) applied() *ballastv1.FromNode {
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: lb.revision}}}
}

// onChecks replaces what a controller wants checked.
func (lb *LB) onChecks(controller string, services []string) {
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

// resyncIfNeeded asks controllers for everything where that is needed.
func (lb *LB) resyncIfNeeded(now time.Time) {
	if lb.remote == nil {
		return
	}
	lb.remote.ResyncIfNeeded(now, func() {
		lb.mu.Lock()
		defer lb.mu.Unlock()
		for _, weights := range lb.weights { // terms of the state to come are lower, too
			weights.Term, weights.Version = 0, 0
		}
	})
}
