// How two fleets differ, in lines for people.

package fleet

import (
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// Diff returns what changes from a to b, one readable line each: "service web: server s2: weight 1 -> 5". Services and
// nodes are told apart by name, servers by id (by name where no connection is remembered by the id). Keys are named, never shown. nil = nothing changes.
func Diff(a, b model.Fleet) []string {
	lines := diffKeys(&a.Keys, &b.Keys)
	before, after := index(a.Services, serviceName), index(b.Services, serviceName)
	for i := range a.Services {
		if after[a.Services[i].Name] == nil {
			lines = append(lines, fmt.Sprintf("service %s: removed", a.Services[i].Name))
		}
	}
	for i := range b.Services {
		to := &b.Services[i]
		if from := before[to.Name]; from != nil {
			lines = append(lines, diffService(from, to)...)
		} else {
			lines = append(lines, fmt.Sprintf("service %s: added with %s", to.Name, model.Counted(len(to.Servers), "server", "servers")))
		}
	}
	return slices.Concat(lines, diffNodes(a.Nodes, b.Nodes), diffFields("node_health: ", schema.Health, &a.NodeHealth, &b.NodeHealth),
		diffFields("", schema.Fleet, &a, &b))
}

// OfPeople returns a fleet without the services that programs keep: no revision has them.
func OfPeople(f model.Fleet) model.Fleet {
	f.Services = slices.DeleteFunc(slices.Clone(f.Services), func(s model.Service) bool { return s.Owner != "" })
	return f
}

func diffNodes(a, b []model.Node) (lines []string) {
	before, after := index(a, nodeName), index(b, nodeName)
	for i := range a {
		if after[a[i].Name] == nil {
			lines = append(lines, fmt.Sprintf("node %s: removed", a[i].Name))
		}
	}
	for i := range b {
		to := &b[i]
		prefix := fmt.Sprintf("node %s: ", to.Name)
		switch from := before[to.Name]; {
		case from != nil:
			lines = append(lines, diffFields(prefix, schema.Node, from, to)...)
		case to.Tier == 0 && !to.L2.IsZero():
			lines = append(lines, fmt.Sprintf("%sadded with l2, interface %s", prefix, to.L2.Interface))
		case to.Tier == 0:
			lines = append(lines, fmt.Sprintf("%sadded with bgp, AS %d, neighbors %v", prefix, to.BGP.AS, to.BGP.Neighbors))
		case to.Tier == model.TierFirst:
			lines = append(lines, prefix+"added with tier first")
		default:
			lines = append(lines, fmt.Sprintf("%sadded with tier %s, address %s, id %d, %s", prefix, to.Tier, to.Address, to.ID, to.State))
		}
	}
	return lines
}

func diffKeys(a, b *model.Keys) (lines []string) {
	switch none := ([16]byte{}); {
	case a.Placement == b.Placement:
	case a.Placement == none:
		lines = append(lines, "keys: placement added")
	default:
		lines = append(lines, "keys: placement changed")
	}
	for _, epoch := range a.Epochs() {
		if key, ok := b.Cookie[epoch]; !ok {
			lines = append(lines, fmt.Sprintf("keys: cookie epoch %d removed", epoch))
		} else if key != a.Cookie[epoch] {
			lines = append(lines, fmt.Sprintf("keys: cookie epoch %d changed", epoch))
		}
	}
	for _, epoch := range b.Epochs() {
		if _, ok := a.Cookie[epoch]; !ok {
			lines = append(lines, fmt.Sprintf("keys: cookie epoch %d added", epoch))
		}
	}
	if a.Current != b.Current {
		lines = append(lines, fmt.Sprintf("keys: current %d -> %d", a.Current, b.Current))
	}
	return lines
}

func diffService(from, to *model.Service) []string {
	prefix := fmt.Sprintf("service %s: ", to.Name)
	lines := diffFields(prefix, schema.Service, from, to)
	key := identity(from, to)
	before, after := index(from.Servers, key), index(to.Servers, key)
	for i := range from.Servers {
		if server := &from.Servers[i]; after[key(server)] == nil {
			lines = append(lines, fmt.Sprintf("%sserver %s: removed", prefix, server.Name))
		}
	}
	for i := range to.Servers {
		server := &to.Servers[i]
		if old := before[key(server)]; old != nil {
			lines = append(lines, diffFields(fmt.Sprintf("%sserver %s: ", prefix, old.Name), schema.Server, old, server)...)
		} else {
			lines = append(lines, fmt.Sprintf("%sserver %s: added with address %s, id %d, weight %d, %s",
				prefix, server.Name, server.Address, server.ID, server.Weight, server.State))
		}
	}
	return lines
}

func diffFields[T any](prefix string, fields []schema.Field[T], from, to *T) (lines []string) {
	for _, f := range fields {
		if old, new := f.Text(from), f.Text(to); old != new {
			lines = append(lines, fmt.Sprintf("%s%s %s -> %s", prefix, f.Key, old, new))
		}
	}
	return lines
}
