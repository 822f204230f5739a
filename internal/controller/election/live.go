// Who of the controllers lives, as far as the store says.
package election

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Lives reports whether a controller of that name is among those that live.
func Lives(name string, live []store.Member) bool {
	return slices.ContainsFunc(live, func(m store.Member) bool { return m.Name == name })
}

// Contested says of controllers that live who else is on the list by their name.
func Contested(live []store.Member) (problems []string) {
	for _, m := range live {
		if m.Rival != "" {
			problems = append(problems, fmt.Sprintf("%s and %s both serve as %s: one has the other's certificate, unless it has just been restarted with another address",
				min(m.Address, m.Rival), max(m.Address, m.Rival), m.Name))
		}
	}
	return problems
}

// namesOf are the names of the controllers that live; none if self is not among them, as it may have missed who came.
func namesOf(self string, live []store.Member) (names []string) {
	if !Lives(self, live) {
		return nil
	}
	for _, m := range live {
		names = append(names, m.Name)
	}
	return names
}

// withoutLease remembers who was on the list of those that live and is not any more.
func withoutLease(gone map[string]*ballastv1.NodeStatus, before, now []store.Member) map[string]*ballastv1.NodeStatus {
	next := maps.Clone(gone)
	if next == nil {
		next = map[string]*ballastv1.NodeStatus{}
	}
	for _, m := range before {
		next[m.Name] = &ballastv1.NodeStatus{Role: string(pki.Controller), Name: m.Name, Address: m.Address, Version: m.Version, Ready: hub.ReadyLost,
			LastSeen: timestamppb.Now(), Problems: []string{"its lease has ended"}}
	}
	for _, m := range now {
		delete(next, m.Name)
	}
	maps.DeleteFunc(next, func(_ string, n *ballastv1.NodeStatus) bool { return time.Since(n.LastSeen.AsTime()) > hub.LostLife })
	return next
}
