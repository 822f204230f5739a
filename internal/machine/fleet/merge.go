// The edit of a file, carried over to what runs: a three-way merge.

package fleet

import (
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/schema"
)

// mergeFile carries the edit of a file over to the running fleet: only what differs between base (the file as it was last applied)
// and edited (the file as it is now) is done to running. So the last explicit change of a thing wins, and a line of the
// file that nobody touched never undoes a change made with ctl. A change of a server, service or node that running no longer has does
// not bring it back. Neither argument is modified.
//
// changes tells what merged changes in running (see Diff) and which edits had no effect. merged can be contradictory where both
// sides were sensible (a server added on both, at one address): validate it before use.
func mergeFile(base, edited, running model.Fleet) (merged model.Fleet, changes []string) {
	merged = running.Clone()
	mergeKeys(&base.Keys, &edited.Keys, &merged.Keys)
	m := merge[model.Service]{key: serviceName, clone: (*model.Service).Clone}
	m.change = func(from, to, target *model.Service) []string {
		mergeFields(schema.Service, from, to, target)
		prefix := fmt.Sprintf("service %s: server ", to.Name)
		servers := merge[model.Server]{
			key:    identity(from, to, target),
			clone:  func(s *model.Server) model.Server { return *s },
			change: mergeServer,
			lost:   func(s *model.Server) string { return prefix + s.Name },
			differ: func(a, b *model.Server) bool { return *a != *b },
		}
		var notes []string
		target.Servers, notes = servers.lists(from.Servers, to.Servers, target.Servers)
		return notes
	}
	m.lost = func(s *model.Service) string { return "service " + s.Name }
	m.differ = func(a, b *model.Service) bool { return len(diffService(a, b)) > 0 }
	var notes, more []string
	merged.Services, notes = m.lists(base.Services, edited.Services, merged.Services)
	merged.Nodes, more = nodesMerge.lists(base.Nodes, edited.Nodes, merged.Nodes)
	mergeFields(schema.Health, &base.NodeHealth, &edited.NodeHealth, &merged.NodeHealth)
	mergeFields(schema.Fleet, &base, &edited, &merged)
	return merged, slices.Concat(Diff(running, merged), notes, more)
}

var nodesMerge = merge[model.Node]{
	key:    nodeName,
	clone:  func(n *model.Node) model.Node { return *n },
	differ: func(a, b *model.Node) bool { return len(diffFields("", schema.Node, a, b)) > 0 },
	change: func(from, to, target *model.Node) []string {
		mergeFields(schema.Node, from, to, target)
		return nil
	},
	lost: func(n *model.Node) string { return "node " + n.Name },
}

func mergeKeys(base, edited, target *model.Keys) {
	if base.Placement != edited.Placement {
		target.Placement = edited.Placement
	}
	if base.Current != edited.Current {
		target.Current = edited.Current
	}
	for epoch := range base.Cookie {
		if _, ok := edited.Cookie[epoch]; !ok {
			delete(target.Cookie, epoch)
		}
	}
	for epoch, key := range edited.Cookie {
		if old, ok := base.Cookie[epoch]; !ok || old != key {
			if target.Cookie == nil {
				target.Cookie = make(map[uint32][16]byte)
			}
			target.Cookie[epoch] = key
		}
	}
}

func mergeServer(from, to, target *model.Server) []string {
	mergeFields(schema.Server, from, to, target)
	if from.State != to.State || !from.Deadline.Equal(to.Deadline) { // half of a drain would be another one
		target.State, target.Deadline = to.State, to.Deadline
	}
	return nil
}

func mergeFields[T any](fields []schema.Field[T], from, to, target *T) {
	for _, f := range fields {
		if f.Text(from) != f.Text(to) {
			f.Copy(target, to)
		}
	}
}

// merge is a three-way merge of lists whose elements have keys.
type merge[T any] struct {
	key    func(*T) string
	clone  func(*T) T
	differ func(a, b *T) bool
	change func(from, to, target *T) (notes []string) // carries what differs between from and to over to target
	lost   func(*T) string                            // names an element in a note
}

func (m *merge[T]) lists(base, edited, running []T) (merged []T, notes []string) {
	before, after, targets := index(base, m.key), index(edited, m.key), index(running, m.key)
	for i := range edited {
		to := &edited[i]
		from, target := before[m.key(to)], targets[m.key(to)]
		switch {
		case from == nil && target == nil:
			merged = append(merged, m.clone(to))
		case from == nil:
			*target = m.clone(to)
		case target != nil:
			notes = append(notes, m.change(from, to, target)...)
		case m.differ(from, to):
			notes = append(notes, m.lost(to)+": no longer running, so its edit has no effect")
		}
	}
	kept := slices.DeleteFunc(running, func(element T) bool {
		k := m.key(&element)
		return before[k] != nil && after[k] == nil
	})
	return append(kept, merged...), notes
}
