package fleet

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/model"
)

// checkLayout refuses what would put the server's id elsewhere in the cookies of living connections. A service may get a connection table
// where ids still fit what its index leaves: until connections have an index, theirs are the cookies that they have. One that gives its table up
// leaves the room of the index free.
func (n *Desired) checkLayout(before, after *model.Service) error {
	keep := func(key string, value any, problem string) error {
		return &model.Invalid{Path: "services." + after.Name + "." + key, Problem: problem, Remedy: fmt.Sprintf("keep %v, or move the service to another VIP", value)}
	}
	old, table := &before.Table, &after.Table
	switch {
	case !before.Affinity.Cookies():
		return nil
	case after.Affinity.Cookies() && old.IndexBits > 0 && old.NodeBits == 0 && table.NodeBits > 0:
		return &model.Invalid{Path: "services." + after.Name + ".table.node_bits", Problem: "a service gets room for the ids of nodes only when it is added",
			Remedy: "move the service to another VIP, or leave nodes of the second tier (and node_bits) out"}
	case before.CookieBits != after.CookieBits:
		return keep("cookie_bits", before.CookieBits, "living connections carry cookies of another width")
	case !after.Affinity.Cookies():
		return nil
	case old.IndexBits == 0:
		return n.checkRoom(before, after)
	case table.IndexBits == 0:
		return keep("table.index_bits", old.IndexBits, "living connections carry the index of their entry in a table as well")
	case old.IndexBits != table.IndexBits:
		return keep("table.index_bits", old.IndexBits, "living connections carry indices of another width")
	case old.NodeBits != table.NodeBits:
		return keep("table.node_bits", old.NodeBits, "living connections carry ids of nodes of another width")
	}
	return nil
}

// checkRoom refuses a table for a service some of whose connections carry ids that its cookies have no room for.
func (n *Desired) checkRoom(before, after *model.Service) error {
	servers := append(n.Lingering(before.Name), before.Servers...)
	for i := range servers {
		if id := servers[i].ID; id > after.MaxID() {
			return &model.Invalid{Path: "services." + after.Name + ".affinity",
				Problem: fmt.Sprintf("living connections carry id %d of server %s, and with the table's index ids go to %d", id, servers[i].Name, after.MaxID()),
				Remedy:  "use a smaller table.index_bits; once the server is removed, `ballast ctl server forget` gives its id up"}
		}
	}
	return nil
}
