// What a file that was applied to the whole fleet says, where commands have set something else since.

package fleet

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// What commands set from day to day, and an unrelated edit of a file must not undo.
var (
	serverOperation = schema.Named(schema.Server, "weight", "state", "deadline")
	nodeOperation   = schema.Named(schema.Node, "state")
)

// Recall makes a file, once applied, say all of the fleet, whatever was changed since the one before, but for the weights and states of servers
// and nodes that were set since: overridden has these as the file said them.
func (n *Desired) Recall(overridden model.Fleet) { n.Base = applied(&overridden, &n.Running) }

// applied returns running with the weights and states of servers and nodes that base has. It shares what running has.
func applied(base, running *model.Fleet) model.Fleet {
	applied := *running
	applied.Services = slices.Clone(running.Services)
	said := index(base.Services, serviceName)
	for i := range applied.Services {
		if s := &applied.Services[i]; said[s.Name] != nil {
			s.Servers = restated(s.Servers, said[s.Name].Servers, identity(said[s.Name], s), serverOperation)
		}
	}
	applied.Nodes = restated(running.Nodes, base.Nodes, nodeName, nodeOperation)
	return applied
}

// restated returns a list in which the fields are as they are said of an element.
func restated[T any](list, said []T, key func(*T) string, fields []schema.Field[T]) []T {
	if len(said) == 0 || len(list) == len(said) && &list[0] == &said[0] {
		return list
	}
	saying, list := index(said, key), slices.Clone(list)
	for i := range list {
		if from := saying[key(&list[i])]; from != nil {
			for _, f := range fields {
				f.Copy(&list[i], from)
			}
		}
	}
	return list
}

// Overridden returns the least that Recall needs to know of Base: services, by name and affinity, with those servers, and nodes, that commands
// have set otherwise.
func (n *Desired) Overridden() (least model.Fleet) {
	said := applied(&n.Base, &n.Running)
	for i := range said.Services {
		from, to := &said.Services[i], &n.Running.Services[i]
		if servers := unlike(from.Servers, to.Servers, serverOperation); len(servers) > 0 {
			least.Services = append(least.Services, model.Service{Name: to.Name, Affinity: to.Affinity, Servers: servers})
		}
	}
	least.Nodes = unlike(said.Nodes, n.Running.Nodes, nodeOperation)
	return least
}

// unlike returns the elements of a that differ from those at the same place in b.
func unlike[T any](a, b []T, fields []schema.Field[T]) (found []T) {
	if len(a) == 0 || &a[0] == &b[0] {
		return nil
	}
	for i := range a {
		if len(diffFields("", fields, &a[i], &b[i])) > 0 {
			found = append(found, a[i])
		}
	}
	return found
}
