// The services of scenarios, and their servers.
package scenario

import (
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// The addresses of the first service of a trial.
const VIP4, VIP6 = "198.51.100.10", "2001:db8:100::10"

// AllPolicies as Options.Dispatch stands for one service of each policy.
const AllPolicies = "all"

// WeightsInterval is between updates of weights of services that follow load.
const WeightsInterval = 100 * time.Millisecond

// newService makes a service of port 80 with choices that scenarios differ in, and else Ballast's defaults.
func newService(name, vip string, dispatch model.Dispatch, affinity model.Affinity) *fleet.Service {
	one := fleet.NewService(name, vip)
	one.Dispatch, one.Affinity = dispatch, affinity
	if !affinity.Cookies() {
		one.Fallback = model.FallbackHash
	}
	return one
}

// CookieService is a service with Ballast's defaults.
func CookieService(vip string) *fleet.Service {
	return newService("web", vip, model.DispatchRR, model.AffinityCookie)
}

// HashService is what load balancers without cookies or tables do; the baseline.
func HashService(vip string) *fleet.Service {
	return newService("web", vip, model.DispatchHash, model.AffinityHash)
}

// TableService is a service whose load balancers keep a table of its connections.
func TableService(vip string, table model.Table) *fleet.Service {
	one := newService("web", vip, model.DispatchRR, model.AffinityTable)
	one.Table = table
	return one
}

// LocalService is what load balancers with tables of their own do, which no other knows; the baseline of those with tables.
func LocalService(vip string) *fleet.Service {
	return newService("web", vip, model.DispatchRR, model.AffinityLocal)
}

// Policies are all of them. Those that follow load get new weights ten times a second.
var Policies = model.Dispatches()

// PolicyService is a service with cookies and the given policy.
func PolicyService(vip string, dispatch model.Dispatch) *fleet.Service {
	one := newService("web", vip, dispatch, model.AffinityCookie)
	if dispatch.FollowsLoad() {
		one.Load.Interval = model.Duration(WeightsInterval)
	}
	return one
}

// ThroughService has its answers pass the load balancers, which write its cookies.
func ThroughService(forward model.Forward) *fleet.Service {
	one := CookieService(VIP4)
	one.Forward, one.Return = forward, model.ReturnThrough
	return one
}

// ControlService follows load ten times a second and has its servers' health checked five times a second.
func ControlService() *fleet.Service {
	one := PolicyService(VIP4, model.DispatchAWRR)
	often := model.Duration(200 * time.Millisecond)
	one.Health = model.Health{Check: model.CheckHTTP, Path: world.PathHealth, Interval: often, Timeout: often, Rise: 2, Fall: 2}
	return one
}

// CheckedService has its servers asked for a page that the lab can take away.
func CheckedService() *fleet.Service {
	one := CookieService(VIP4)
	one.Health = world.Checks(model.CheckHTTP)
	one.Health.Path = world.PathHealth
	return one
}

// ElasticPolicies are services of the same servers, which see the same arrivals and the same events.
func ElasticPolicies() []*fleet.Service {
	again := newService("second-chance", "198.51.100.12", model.DispatchMaglev, model.AffinityHash)
	again.Fallback = model.FallbackSecondChance
	cookie := PolicyService("198.51.100.13", model.DispatchAWRR)
	cookie.Name = "cookie"
	return []*fleet.Service{
		newService("hash", "198.51.100.10", model.DispatchHash, model.AffinityHash),
		newService("maglev", "198.51.100.11", model.DispatchMaglev, model.AffinityHash),
		again, cookie,
	}
}

// Servers makes n equal servers.
func Servers(n int, sysctls map[string]string) []world.ServerNode {
	nodes := make([]world.ServerNode, n)
	for i := range nodes {
		nodes[i].Sysctls = sysctls
	}
	return nodes
}
