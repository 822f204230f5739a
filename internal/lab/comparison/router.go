package comparison

import (
	"fmt"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// Of the router's next hops: a resilient group (Linux 5.12) moves the flows of a next hop that goes, and of one that comes only what has been
// idle, so that no balancer loses flows to another that returns.
const (
	group   = "1000"
	buckets = "1024"
	idle    = "60" // seconds
	again   = 100  // added to a next hop's number for its second entry
)

// router is the router's way to the VIP: as resilient as Linux can be.
type router struct {
	t   *world.Trial
	ids map[hop]int
}

func newRouter(t *world.Trial) *router { return &router{t: t, ids: map[hop]int{}} }

func (r *router) ip(arguments ...string) {
	script.Check(r.t.Lab.Run(world.RouterNode, "", append([]string{"ip"}, arguments...)...))
}

// send sends new flows to these next hops, as a routing protocol would have it. Those of next hops that stay, stay.
func (r *router) send(hops []hop) {
	var members []string
	for _, one := range hops {
		if r.ids[one] == 0 {
			r.ids[one] = len(r.ids) + 1
		}
		// Twice: of a group of one, the kernel does not note which buckets are in use, and moves them all when another comes (6.18).
		for _, id := range []string{fmt.Sprint(r.ids[one]), fmt.Sprint(again + r.ids[one])} {
			r.ip("nexthop", "replace", "id", id, "via", one.by.String(), "dev", one.device) // the kernel removes them with their link
			members = append(members, id)
		}
	}
	r.ip("nexthop", "replace", "id", group, "group", strings.Join(members, "/"), "type", "resilient", "buckets", buckets, "idle_timer", idle)
	r.ip("route", "replace", vip+"/32", "nhid", group)
}

// forget removes the group, so that the next begins with even shares.
func (r *router) forget() {
	if len(r.ids) > 0 {
		r.ip("nexthop", "delete", "id", group)
	}
}

// balancers are the next hops of balancers.
func balancers(numbers ...int) (hops []hop) {
	for _, i := range numbers {
		near, _ := world.UplinkAddress(i)
		hops = append(hops, hop{near, world.UplinkName(i)})
	}
	return hops
}
