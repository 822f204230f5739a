// Package checks finds out which servers and nodes of the second tier answer, by the way that traffic takes.
package checks

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Options of New.
type Options struct {
	Instance string
	Dir      string // of the pins
	Exec     check.Exec
	// OnRequest: only services that somebody asks for are checked here (Want).
	OnRequest bool
	Report    func([]engine.ServerHealth)
	Sender    checkroute.Sender           // of first packets; nil: the kernel sends all
	Refuses   func(ifindex uint32) string // why a device drops what XDP redirects to it, empty: that is not known
	Log       *slog.Logger
}

// Checks are those of one load balancer. All methods are safe for concurrent use.
type Checks struct {
	options Options
	prober  *check.Prober
	routes  *checkroute.Checks // nil: all checks go straight to the servers

	mutex   sync.Mutex          // guards what follows, and comes before those of dataplane
	wanted  map[string][]string // services, by who asks for them
	all     bool                // all services are checked, whoever asks
	refused []string            // exec checks that are not made here
	silent  map[netip.Addr]bool // servers that did not answer a check since Silent was last called
}

// New returns checks of nothing yet.
func New(o Options) *Checks {
	c := &Checks{options: o, wanted: map[string][]string{}, silent: map[netip.Addr]bool{}}
	prober := check.Options{
		NewVerdict: func(t *check.Target) check.Verdict { return health.Begin(time.Now(), t.Unhealthy) },
		Timing:     check.Timing{First: health.First, Next: health.Next},
		Changed:    func(r check.Result) { c.report([]check.Result{r}) },
		Silent:     c.noAnswer,
		Exec:       o.Exec,
	}
	routes, err := checkroute.Open(o.Dir, o.Sender)
	if err != nil {
		o.Log.Warn("health checks go directly to the servers, not through the tunnel", "error", err)
	} else {
		c.routes = routes
		prober.Dial = func(ctx context.Context, t check.Target, port uint16, hello []byte) (net.Conn, check.Remarks, error) {
			return routes.Dial(ctx, checkroute.Key{Service: t.Service, ID: t.ID}, port, hello)
		}
	}
	c.prober = check.New(prober)
	return c
}

// Run checks until ctx ends, and says everything from time to time, besides every change at once.
func (c *Checks) Run(ctx context.Context) {
	var repeating sync.WaitGroup
	repeating.Go(func() {
		periodic.Every(ctx, health.RepeatInterval, func(time.Time) { c.Repeat() })
	})
	if c.routes != nil {
		repeating.Go(func() {
			if err := c.routes.Run(ctx); err != nil {
				c.options.Log.Error("the kernel sends all packets of health checks: servers may be healthy that XDP does not reach", "error", err)
			}
		})
	}
	c.prober.Run(ctx)
	repeating.Wait()
	if c.routes != nil {
		c.routes.Close()
	}
}

// Want says which services somebody wants checked. Follow takes it up.
func (c *Checks) Want(who string, services []string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.wanted[who] = services
}

// WantAll says whether all services are to be checked. Follow takes it up.
func (c *Checks) WantAll(all bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.all = all
}

// Forget drops what those want who are not among the given ones. Follow takes it up.
func (c *Checks) Forget(others []string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	maps.DeleteFunc(c.wanted, func(who string, _ []string) bool { return !slices.Contains(others, who) })
}

func (c *Checks) noAnswer(t check.Target) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.silent[t.Address] = true
}

// Silent returns the servers that have not answered a check since it was last called.
func (c *Checks) Silent() []netip.Addr {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	silent := slices.Collect(maps.Keys(c.silent))
	clear(c.silent)
	return silent
}

// Repeat says everything that is known at once.
func (c *Checks) Repeat() {
	if results := c.prober.All(); len(results) > 0 {
		c.report(results)
	}
}

// Results are what is known of servers by checks of this load balancer.
func (c *Checks) Results() []check.Result { return c.prober.All() }

// Follow checks the servers and nodes that this node is to check now.
func (c *Checks) Follow(tables *dataplane.Tables) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	now, wanted, asked := tables.Now(), map[string]bool{}, c.options.OnRequest && !c.all
	for _, services := range c.wanted {
		for _, service := range services {
			wanted[service] = true
		}
	}
	var targets []check.Target
	ways := map[checkroute.Key]checkroute.Target{}
	if second := now.SecondTier(); second != nil && (!asked || wanted[second.Name]) {
		targets = check.Targets(second)
		down := now.DownOf(second.Name)
		for _, target := range targets {
			way := direct(&target, now, now.PlaceOfNodes())
			way.Absent = down[target.ID]
			ways[checkroute.Key{Service: second.Name, ID: target.ID}] = way
		}
	}
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		if now.SendsToNodes(s) || asked && !wanted[s.Name] {
			continue
		}
		owns := cookieOwner(&now.Running.Keys, s)
		for _, target := range check.Targets(s) {
			targets = append(targets, target)
			if s.Functions() {
				ways[checkroute.Key{Service: s.Name, ID: target.ID}] = direct(&target, now, now.Places[s.Name])
				continue
			}
			ways[checkroute.Key{Service: s.Name, ID: target.ID}] = checkroute.Target{
				VIP: target.VIP, Server: target.Address, Forward: s.Forward, Return: s.Return, Path: now.Paths[target.Address],
				Number: now.Places[s.Name].Numbers[target.VIP], ID: target.ID,
				Ports: s.CheckedPorts(target.Address, now.Running.Services), Owns: owns(target.VIP, target.ID), Placed: s.Dispatch.Placed(),
			}
		}
	}
	if c.routes != nil {
		if err := c.routes.Set(ways); err != nil {
			c.options.Log.Warn("health checks do not go through the tunnel", "error", err)
		}
	}
	for i := range targets {
		t := &targets[i]
		found := now.Unhealthy[t.Service]
		t.Unhealthy = slices.Contains(found.Down, t.ID) || slices.Contains(found.Kept, t.ID)
	}
	c.prober.Set(targets)
	refused := c.prober.Refused()
	for _, line := range refused {
		if !slices.Contains(c.refused, line) {
			c.options.Log.Warn(line)
		}
	}
	c.refused = refused
}

// direct is a target that has no VIP, among the servers at a place.
func direct(t *check.Target, now *dataplane.Snapshot, place plan.Place) checkroute.Target {
	return checkroute.Target{Server: t.Address, Path: now.Paths[t.Address], Number: place.Number, ID: t.ID}
}

// cookieOwner returns, for one of its vips and a server's id, what recognises its cookie in its timestamps; nil: the service's servers write none.
func cookieOwner(keys *model.Keys, s *model.Service) func(vip netip.Addr, id uint16) func(client netip.AddrPort, port uint16, timestamp uint32) bool {
	if !serversMark(s) {
		return func(netip.Addr, uint16) func(netip.AddrPort, uint16, uint32) bool { return nil }
	}
	readers := map[netip.Addr]func(netip.AddrPort, uint16, uint32) (uint16, bool){}
	for _, vip := range s.VIPs() {
		readers[vip] = cookie.Reader(keys, s, vip)
	}
	return func(vip netip.Addr, id uint16) func(netip.AddrPort, uint16, uint32) bool {
		read := readers[vip]
		return func(client netip.AddrPort, port uint16, timestamp uint32) bool {
			found, known := read(client, port, timestamp)
			return known && found == id
		}
	}
}

// sentBy tells how a packet that was not answered left this host.
func (c *Checks) sentBy(ifindex int) string {
	if c.options.Refuses != nil {
		if why := c.options.Refuses(uint32(ifindex)); why != "" {
			return why
		}
	}
	return "XDP redirected its first packet to " + netdev.Name(ifindex) + ", as it does with clients' packets"
}

// report gives away what checks found.
func (c *Checks) report(results []check.Result) {
	servers := make([]engine.ServerHealth, len(results))
	for i, r := range results {
		servers[i] = engine.ServerHealth{Service: r.Service, ID: r.ID, View: health.View{Healthy: r.Healthy, Direct: r.Direct != "", Unanswered: r.Direct == "" && r.Unanswered, Detail: r.Detail,
			Succeeded: r.Succeeded}}
		if r.Healthy && r.Cookie == check.CookieMissing {
			servers[i].Detail = checkroute.ErrNoTimestamps.Error()
		}
		switch {
		case r.Direct == "":
		case !r.Healthy: // why it is direct is not why it fails
			servers[i].Detail += " (checked directly, not through the tunnel)"
		case servers[i].Detail != "":
			servers[i].Detail += " (direct: " + r.Direct + ")"
		default:
			servers[i].Detail = "direct: " + r.Direct
		}
		if !r.Healthy && r.SentBy != 0 {
			servers[i].Detail += " (" + c.sentBy(r.SentBy) + ")"
		}
	}
	c.options.Report(servers)
}
