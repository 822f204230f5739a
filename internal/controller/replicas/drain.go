// Load balancers that operators keep off the ring, or that are gone for good.
package replicas

import (
	"context"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/store"
)

// Drain keeps a load balancer off the ring, or lets it on again; see api.Desired.
func (m *Manager) Drain(ctx context.Context, dryRun bool, name string, off bool) (changes []string, revision uint64, err error) {
	return m.o.Writer.Record(ctx, dryRun, func(now *documents.Snapshot) (changes []string, wanted []store.Document, err error) {
		members := now.Ring
		if members.Node(name) == nil {
			return nil, nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no load balancer %q has come to the ring: see `ballast ctl replica list`", name))
		}
		if slices.Contains(members.Drained, name) == off {
			return nil, nil, nil
		}
		if err := mayLeave(&members, name); off && err != nil {
			return nil, nil, err
		}
		members.Drained = slices.DeleteFunc(slices.Clone(members.Drained), func(other string) bool { return other == name })
		what := "comes onto the ring again"
		if off {
			members.Drained, what = append(members.Drained, name), "leaves the ring"
			slices.Sort(members.Drained)
		}
		document, err := now.Put(documents.RingKey, members)
		return []string{fmt.Sprintf("replicas: %s %s", name, what)}, []store.Document{document}, err
	})
}

// mayLeave refuses what would leave chains that lose their entries when one more load balancer fails.
func mayLeave(members *replica.Members, name string) error {
	stay, list := 0, members.Current()
	if _, on := list.Find(members.Node(name).Number); !on {
		return nil
	}
	for _, member := range list {
		if other := nameOf(members, member.Node); other != name && !slices.Contains(members.Drained, other) {
			stay++
		}
	}
	if stay > members.Chain {
		return nil
	}
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%d load balancers would stay on the ring: chains of %d need %d, so that one may fail: add or undrain one first",
		stay, members.Chain, members.Chain+1))
}

// Forget gives up the number of a load balancer that is not on the ring.
func (m *Manager) Forget(ctx context.Context, name string) error {
	return m.o.Writer.Update(ctx, func(now *documents.Snapshot) ([]store.Document, error) {
		members := now.Ring
		node := members.Node(name)
		if node == nil || slices.ContainsFunc(members.Ring.Lists, func(list ring.List) bool { _, on := list.Find(node.Number); return on }) {
			return nil, nil
		}
		members.Nodes = slices.DeleteFunc(slices.Clone(members.Nodes), func(n replica.PeerNode) bool { return n.Name == name })
		members.Drained = slices.DeleteFunc(slices.Clone(members.Drained), func(other string) bool { return other == name })
		document, err := now.Put(documents.RingKey, members)
		return []store.Document{document}, err
	})
}
