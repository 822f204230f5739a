package comparison

import (
	"context"
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// ours are Ballast with the ways of others, and with its own.
func ours() []Contender {
	placed := func(affinity model.Affinity, fallback model.Fallback) func() *fleet.Service {
		return func() *fleet.Service {
			one := scenario.HashService(vip)
			one.Dispatch, one.Affinity, one.Fallback = model.DispatchMaglev, affinity, fallback
			return one
		}
	}
	replicated := func() *fleet.Service {
		one := scenario.CookieService(vip)
		one.Fallback = model.FallbackReplicated
		return one
	}
	cookie := func() *fleet.Service { return scenario.CookieService(vip) }
	return []Contender{
		ballast("maglev", "Ballast with Maglev hashing alone", placed(model.AffinityHash, model.FallbackHash)),
		ballast("maglev-local", "Ballast with Maglev hashing and a table at each balancer, as Katran and Cilium", placed(model.AffinityLocal, model.FallbackHash)),
		ballast("second-chance", "Ballast with Maglev hashing and second chance, as GLB", placed(model.AffinityHash, model.FallbackSecondChance)),
		ballast("cookie", "Ballast with cookies, its default", cookie),
		overRing(ballast("replicated", "Ballast with a replicated table on three balancers and a controller; clients send no timestamps", replicated)),
	}
}

func ballast(name, about string, service func() *fleet.Service) Contender {
	return Contender{
		Name: name, About: about, Balancers: 2, Checks: true,
		Version: func(binary string) []string { return []string{binary, "version"} },
		Setup: func() world.Setup {
			one := service()
			one.Health = model.Health{Check: model.CheckHTTP, Path: world.PathHealth, Rise: checkRise, Fall: checkFall,
				Interval: model.Duration(checkInterval), Timeout: model.Duration(checkTimeout)}
			return world.Setup{Services: []*fleet.Service{one}}
		},
		New: func(t *world.Trial) Balancing { return &daemons{t: t} },
	}
}

// ringWithin is how long a ring of replicas may take to change: one that a load balancer has left again and again lets it wait.
const ringWithin = 2 * time.Minute

func overRing(c Contender) Contender {
	setup := c.Setup
	c.Balancers = 3
	c.Setup = func() world.Setup {
		what := setup()
		what.Topology.Management, what.Topology.Controllers, what.Topology.EtcdMembers = true, 1, 1
		what.Topology.ClientSysctls = map[string]string{"net.ipv4.tcp_timestamps": "0"}
		return what
	}
	c.New = func(t *world.Trial) Balancing { return &daemons{t: t, ring: true, away: map[int]bool{}} }
	return c
}

// daemons are those of Ballast.
type daemons struct {
	t    *world.Trial
	ring bool
	away map[int]bool
	pool []State
}

// Start has little to do: a trial starts Ballast.
func (d *daemons) Start(pool []State) {
	d.pool = append(d.pool, pool...)
	if d.ring {
		d.t.Fleet.Replicas = model.Replicas{Chain: 2, IdleTimeout: model.Duration(30 * time.Second)}
		d.t.Rollout.Apply()
	}
	d.settle()
	if !d.ring { // whose load balancers share the checks
		d.awaitHealthy()
	}
}

// awaitHealthy waits until all load balancers have checked all servers: the comparison begins with a fleet that runs.
func (d *daemons) awaitHealthy() {
	for i := 1; i <= d.t.Network.LBs; i++ {
		await.Until(d.t.Context, await.Deadline, world.LBName(i)+" has checked all servers", func() error {
			servers, err := d.t.Monitor.Servers(world.LBName(i))
			for _, server := range servers {
				if server.Health != "healthy" {
					return fmt.Errorf("for it %s is %q", server.Server.Name, server.Health)
				}
			}
			return err
		})
	}
}

// settle waits until replicas are where they should be.
func (d *daemons) settle() {
	if !d.ring {
		return
	}
	var living []int
	for i := 1; i <= d.t.Network.LBs; i++ {
		if !d.away[i] {
			living = append(living, i)
		}
	}
	d.t.Operator.AwaitRing(ringWithin, living...)
}

// Change adds servers and drains them. None is removed: a number is not given to another server as long as connections may have it.
func (d *daemons) Change(pool []State) {
	for k, state := range pool {
		switch i := k + 1; {
		case state == d.pool[k]:
		case state == Active && !d.has(i):
			d.t.Pool.AddServer(i)
		case state == Active:
			d.t.Pool.Activate(i)
		default:
			d.t.Pool.Drain(i)
		}
	}
	d.pool = append(d.pool[:0], pool...)
	d.t.Rollout.Apply()
}

func (d *daemons) has(i int) bool {
	for _, server := range d.t.Fleet.Services[0].Servers {
		if server.ID == uint16(i) {
			return true
		}
	}
	return false
}

func (d *daemons) Kill(i int) {
	d.t.Failures.CrashLB(i)
	if d.ring {
		d.away[i] = true
		d.settle()
	}
}

func (d *daemons) Boot(i int) {
	d.t.Failures.ReturnLB(i)
	if d.ring {
		d.away[i] = false
		d.settle()
	}
}

func (d *daemons) Restart(i int) {
	node := world.LBName(i)
	ctx, cancel := loadmeter.WithTimeout(context.WithoutCancel(d.t.Context), await.Deadline)
	defer cancel()
	d.t.Daemons.LBs[node].Stop(ctx)
	d.t.Daemons.LBs[node] = nil
	d.t.Rollout.Apply()
	d.settle()
}

// Reload is what a package does: it starts the new version, which takes over the data path.
func (d *daemons) Reload(i int) { d.Restart(i) }

func (d *daemons) Processes() (all []*host.Process) {
	for _, daemon := range d.t.Daemons.LBs {
		if daemon != nil {
			all = append(all, daemon.Process)
		}
	}
	return all
}
