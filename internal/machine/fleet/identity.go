// What tells services, servers and nodes apart from others of their kind.

package fleet

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/model"
)

// identity tells servers of a service apart: by id where connections are remembered by it, as a server under another id is another one to its
// connections; else by name, as such ids follow from the position in the list.
func identity(versions ...*model.Service) func(*model.Server) string {
	for _, s := range versions {
		if !s.Affinity.KeepsIDs() {
			return func(server *model.Server) string { return "name " + server.Name }
		}
	}
	return func(server *model.Server) string { return fmt.Sprint("id ", server.ID) }
}

func serviceName(s *model.Service) string { return s.Name }

func nodeName(n *model.Node) string { return n.Name }

// index returns pointers to the elements of list by key.
func index[T any](list []T, key func(*T) string) map[string]*T {
	byKey := make(map[string]*T, len(list))
	for i := range list {
		byKey[key(&list[i])] = &list[i]
	}
	return byKey
}
