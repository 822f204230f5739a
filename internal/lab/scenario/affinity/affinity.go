// Package affinity changes the affinity of services while their connections live, and has operators be refused what would break some.
package affinity

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "affinity", Deadline: 4 * time.Minute, Do: runAffinity,
		Promise: "services change their affinity while connections live: none breaks, and what would break some is refused, with their number",
	},
}

// Implementation constants.
const (
	within    = 30 * time.Second
	holding   = 8  // downloads of a service that live as long as it is wanted, and half as many browsers
	flows     = 60 // of UDP
	perSecond = 20 // short connections of a service
	between   = 40 // connections that begin between two changes
)

func runAffinity(run *scenario.Run) {
	servers := make([]world.ServerNode, 4)
	run.Trial(world.Setup{
		Name: "controllers", Services: services(),
		Topology: world.Topology{LBs: 3, Servers: servers, Management: true, Controllers: 1, EtcdMembers: 1},
	}, func(t *world.Trial) { (&changes{Trial: t, result: run.Result}).run() })
	run.Trial(world.Setup{
		Name: "what is refused, by force", Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)}, Baseline: true,
		Topology: world.Topology{LBs: 2, Servers: servers, Management: true, Controllers: 1, EtcdMembers: 1},
	}, func(t *world.Trial) {
		c := &changes{Trial: t, result: run.Result}
		held := c.hold()
		c.to(model.AffinityHash, "web")
		t.Traffic.Until(held, within, "connections that a cookie led are broken", func(p traffic.Progress) bool { return p.Broken > 0 })
	})
}

// services have one of each affinity that others can follow, or that nothing may: placed by maglev where the pair asks for that.
func services() []*fleet.Service {
	made := func(name, vip string, affinity model.Affinity, dispatch model.Dispatch) *fleet.Service {
		one := fleet.NewService(name, vip)
		one.Affinity, one.Dispatch, one.Fallback = affinity, dispatch, model.FallbackHash
		return one
	}
	web := scenario.CookieService(scenario.VIP4)
	shell := made("shell", "198.51.100.14", model.AffinityHistory, model.DispatchChoices)
	shell.Fallback = model.FallbackSecondChance
	dns := made("dns", "198.51.100.15", model.AffinityHash, model.DispatchMaglev)
	dns.Protocol, dns.Ports = model.ProtocolUDP, []uint16{4000}
	return []*fleet.Service{
		web,
		made("placed", "198.51.100.11", model.AffinityCookie, model.DispatchMaglev),
		made("local", "198.51.100.12", model.AffinityHash, model.DispatchMaglev),
		made("replicated", "198.51.100.13", model.AffinityHash, model.DispatchMaglev),
		shell, dns,
	}
}

// changes are those of one trial.
type changes struct {
	*world.Trial
	result  *scenario.Result
	refused int
}

func (c *changes) run() {
	held := c.hold()
	shorts := c.shorts()
	step := func(what string, do func()) world.Step { return world.Step{What: what, Do: do} }
	to := func(affinity model.Affinity, names ...string) world.Step {
		return step(fmt.Sprintf("%s: affinity %s", strings.Join(names, ", "), affinity), func() { c.to(affinity, names...) })
	}
	c.Series(shorts,
		step("what breaks connections is refused", func() {
			c.refuse("web", "all", model.AffinityHash, model.AffinityLocal, model.AffinityReplicated, model.AffinityHistory)
			c.refuse("placed", "some", model.AffinityHash, model.AffinityLocal, model.AffinityReplicated)
			c.refuse("local", "all", model.AffinityCookie, model.AffinityTable, model.AffinityHistory)
			c.refuse("shell", "all", model.AffinityCookie, model.AffinityHash, model.AffinityLocal, model.AffinityReplicated)
			c.refuse("dns", "all", model.AffinityQUIC)
		}),
		to(model.AffinityTable, "web"),
		to(model.AffinityCookie, "web"),
		to(model.AffinityTable, "web"),
		to(model.AffinityLocal, "local", "dns"),
		to(model.AffinityReplicated, "replicated"),
		step("and the ways back", func() {
			c.refuse("web", "all", model.AffinityHash, model.AffinityLocal, model.AffinityReplicated, model.AffinityHistory)
			c.refuse("local", "some", model.AffinityHash, model.AffinityReplicated)
			c.refuse("local", "all", model.AffinityCookie, model.AffinityTable, model.AffinityHistory)
			c.refuse("replicated", "some", model.AffinityHash, model.AffinityLocal)
			c.refuse("replicated", "all", model.AffinityCookie, model.AffinityTable, model.AffinityHistory)
			c.refuse("dns", "some", model.AffinityHash, model.AffinityReplicated)
			c.refuse("dns", "all", model.AffinityQUIC)
		}),
		to(model.AffinityCookie, "web"),
		// Nothing has changed in their tables of slots since connections began: those that may break do not.
		to(model.AffinityHash, "local", "dns", "replicated", "placed"),
		to(model.AffinityReplicated, "dns"),
		to(model.AffinityLocal, "dns"))
	c.result.Measure("refused", float64(c.refused))
	held.Finish(c.Context)
}

// hold has connections to all services that stay busy until they are to end.
func (c *changes) hold() *world.Load {
	var all []traffic.Flow
	for _, one := range c.Fleet.Services {
		if one.Protocol == model.ProtocolUDP {
			c.Endpoints.StartEchoes(one.Target())
			all = append(all, datagrams(one))
			continue
		}
		for _, flow := range []traffic.Flow{scenario.Downloads(one.Target(), holding), scenario.Browsers(one.Target(), holding/2)} {
			flow.Name += " of " + one.Name
			all = append(all, flow)
		}
	}
	return scenario.Hold(c.Trial, "all connections have a server", all...)
}

func datagrams(one *fleet.Service) traffic.Flow {
	return traffic.Flow{Name: "udp", Target: one.Target(), UDP: true, Count: flows, Concurrent: flows, PerSecond: 60, Repeat: true, Again: 500 * time.Millisecond,
		Requests: []traffic.Request{{Bytes: 100, Pause: 300 * time.Millisecond}}}
}

func (c *changes) shorts() *world.Load {
	var all []traffic.Flow
	for _, one := range c.Fleet.Services {
		if one.Protocol != model.ProtocolUDP {
			flow := scenario.Shorts(one.Target(), perSecond)
			flow.Name += " of " + one.Name
			all = append(all, flow)
		}
	}
	running := c.Traffic.Generate(all...)
	c.Traffic.Busy(running, between)
	return running
}

// to gives services another affinity, with the yes of an operator where one is asked for, and waits until all load balancers have it.
func (c *changes) to(affinity model.Affinity, names ...string) {
	for _, one := range c.Fleet.Services {
		if !slices.Contains(names, one.Name) {
			continue
		}
		if one.Affinity == model.AffinityTable {
			one.Table.IndexBits = model.DefaultIndexBits // the room of what cookies carry
		}
		if one.Affinity = affinity; affinity == model.AffinityHash {
			one.Dispatch, one.Fallback = model.DispatchMaglev, model.FallbackHash
		}
	}
	c.Rollout.Apply()
	if c.needsRing() {
		c.Operator.AwaitRing(within, 1, 2, 3)
	}
	await.Promised(c.Context, within, "all run by the affinity", func() error { return c.differ(affinity, names) })
}

func (c *changes) needsRing() bool {
	return slices.ContainsFunc(c.Fleet.Services, func(one *fleet.Service) bool { return one.Replicated() })
}

// differ is why a load balancer does not run by an affinity yet.
func (c *changes) differ(affinity model.Affinity, names []string) error {
	for i := range c.Setup.Topology.LBs {
		node := world.LBName(i + 1)
		have, err := c.Monitor.Affinities(node)
		if err != nil {
			return err
		}
		for _, name := range names {
			if have[name] != affinity {
				return fmt.Errorf("%s has %s of affinity %s", node, name, have[name])
			}
		}
	}
	return nil
}

// beside is what else a service needs with an affinity.
var beside = map[model.Affinity][]string{
	model.AffinityHash: {"--dispatch", "maglev", "--fallback", "hash"}, model.AffinityLocal: {"--dispatch", "maglev", "--fallback", "hash"},
	model.AffinityReplicated: {"--dispatch", "maglev", "--fallback", "hash"}, model.AffinityCookie: {"--dispatch", "rr"}, model.AffinityTable: {"--dispatch", "rr"},
	model.AffinityHistory: {"--dispatch", "choices", "--fallback", "second-chance"}, model.AffinityQUIC: {"--dispatch", "maglev"},
}

// refuse has an operator without a yes ask for affinities that break connections: which, "all" or "some".
func (c *changes) refuse(name, which string, affinities ...model.Affinity) {
	from := c.Fleet.Services[slices.IndexFunc(c.Fleet.Services, func(one *fleet.Service) bool { return one.Name == name })]
	for _, affinity := range affinities {
		line := append([]string{"service", "set", name, "--affinity", affinity.String()}, beside[affinity]...)
		asked := script.Must(c.Operator.BeginAt(world.ControlAddresses(world.ControllerName, 1), line...))
		script.Check(asked.Wait(c.Context, await.Deadline, false))
		said := asked.Errors.String() + asked.Output.String()
		at := fmt.Sprintf("service %s: affinity %s -> %s: of ", name, from.Affinity, affinity)
		ok := strings.Contains(said, at) && strings.Contains(said, fmt.Sprintf(" %s break: ", which)) && strings.Contains(said, "a second service at another vip")
		c.result.Expect(ok, "ballast %s said %q", asked.Line(), said)
		counted := from.Protocol != model.ProtocolUDP
		c.result.Expect(!counted || !strings.Contains(said, at+"connections that nobody counts"), "ballast %s has counted none: %q", asked.Line(), said)
		c.refused++
	}
}
