// The services of scenarios, and their servers.
package scenario

import (
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// The addresses of the first service of a trial.
const VIP4, VIP6 = "198.51.100.10", "2001:db8:100::10"

// AllPolicies as Options.Dispatch stands for one service of each policy.
const AllPolicies = "all"

// WeightsInterval is between updates of weights of services that follow load.
const WeightsInterval = 100 * time.Millisecond

// CookieService is a service with Ballast's defaults.
func CookieService(vip string) *fleet.Service {
	return &fleet.Service{Name: "web", VIP: vip, Ports: []uint16{80}, Dispatch: "rr", Affinity: "cookie"}
}

// HashService is what load balancers without cookies or tables do; the baseline.
func HashService(vip string) *fleet.Service {
	return &fleet.Service{Name: "web", VIP: vip, Ports: []uint16{80}, Dispatch: "hash", Affinity: "hash", Fallback: "hash"}
}

// TableService is a service whose load balancers keep a table of its connections.
func TableService(vip string, table fleet.Table) *fleet.Service {
	return &fleet.Service{Name: "web", VIP: vip, Ports: []uint16{80}, Dispatch: "rr", Affinity: "table", Table: &table}
}

// LocalService is what load balancers with tables of their own do, which no other knows; the baseline of those with tables.
func LocalService(vip string) *fleet.Service {
	return &fleet.Service{Name: "web", VIP: vip, Ports: []uint16{80}, Dispatch: "rr", Affinity: "local-table", Fallback: "hash"}
}

// Policies are all of them. Those that follow load get new weights ten times a second.
var Policies = []string{"hash", "maglev", "rr", "wrr", "p2c", "least", "awrr", "awfd", "wcmp", "lcf"}

// FollowsLoad tells whether a policy goes by the load of servers.
func FollowsLoad(dispatch string) bool {
	return slices.Contains([]string{"awrr", "awfd", "lcf"}, dispatch)
}

// PolicyService is a service with cookies and the given policy.
func PolicyService(vip, dispatch string) *fleet.Service {
	one := CookieService(vip)
	one.Dispatch = dispatch
	if FollowsLoad(dispatch) {
		one.Load = &fleet.Load{Source: "connections", Interval: WeightsInterval.String()}
	}
	return one
}

// ThroughService has its answers pass the load balancers, which write its cookies.
func ThroughService(forward string) *fleet.Service {
	return &fleet.Service{Name: "web", VIP: VIP4, Ports: []uint16{80}, Forward: forward, Return: "through",
		Dispatch: "rr", Affinity: "cookie", CookieBits: 8}
}

// ControlService follows load ten times a second and has its servers' health checked five times a second.
func ControlService() *fleet.Service {
	one := PolicyService(VIP4, "awrr")
	one.Health = &fleet.Health{Check: "http", Path: world.PathHealth, Interval: "200ms", Timeout: "200ms", Rise: 2, Fall: 2}
	return one
}

// CheckedService has its servers asked for a page that the lab can take away.
func CheckedService() *fleet.Service {
	one := CookieService(VIP4)
	one.Health = &fleet.Health{
		Check: "http", Path: world.PathHealth, Interval: world.CheckInterval.String(), Timeout: world.CheckTimeout.String(), Rise: world.CheckRise, Fall: world.CheckFall,
	}
	return one
}

// ElasticPolicies are services of the same servers, which see the same arrivals and the same events.
func ElasticPolicies() []*fleet.Service {
	return []*fleet.Service{
		{Name: "hash", VIP: "198.51.100.10", Ports: []uint16{80}, Dispatch: "hash", Affinity: "hash", Fallback: "hash"},
		{Name: "maglev", VIP: "198.51.100.11", Ports: []uint16{80}, Dispatch: "maglev", Affinity: "hash", Fallback: "hash"},
		{Name: "second-chance", VIP: "198.51.100.12", Ports: []uint16{80}, Dispatch: "maglev", Affinity: "hash", Fallback: "second-chance"},
		{Name: "cookie", VIP: "198.51.100.13", Ports: []uint16{80}, Dispatch: "rr", Affinity: "cookie"},
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
