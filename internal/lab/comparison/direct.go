package comparison

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// direct has no balancer: the router's equal-cost routes lead to the servers.
func direct() Contender {
	return Contender{
		Name: "direct", About: "no balancer: the router's equal-cost routes lead to the servers",
		New: func(t *world.Trial) Balancing { return &routed{t, newRouter(t)} },
	}
}

type routed struct {
	t      *world.Trial
	router *router
}

func (r *routed) Start(pool []State) { r.Change(pool) }

func (r *routed) Change(pool []State) {
	var hops []hop
	for _, i := range with(pool, Active) {
		hops = append(hops, hop{serverAddress(r.t, i), "fabric"})
	}
	r.router.send(hops)
}

func (r *routed) Kill(int)    {}
func (r *routed) Boot(int)    {}
func (r *routed) Restart(int) {}
func (r *routed) Reload(int)  {}

func (r *routed) Processes() []*host.Process { return nil }

// hop is a next hop of the router.
type hop struct {
	by     netip.Addr
	device string
}
