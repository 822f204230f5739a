package election

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/rendezvous"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/store"
)

// Leadership says which controller leads what. The zero value is that of a controller that leads nothing.
type Leadership struct {
	Term  uint64   // 0: nothing
	Names []string // of the controllers that services are divided by
}

func (l Leadership) equal(other Leadership) bool {
	return l.Term == other.Term && slices.Equal(l.Names, other.Names)
}

// LeaderOf returns who leads a service; empty: this controller does not know.
func (l Leadership) LeaderOf(service string) string {
	if l.Term == 0 {
		return ""
	}
	return rendezvous.Elect(service, l.Names, 1)[0]
}

// Leads reports whether a controller of that name leads a service.
func (l Leadership) Leads(name, service string) bool {
	return l.Term != 0 && l.LeaderOf(service) == name
}

// decide returns what self leads: what falls to it by the list, if it is on the list as it is now and lives as far as
// it knows.
func decide(self string, live []store.Member, current *documents.Snapshot) Leadership {
	own := slices.IndexFunc(live, func(m store.Member) bool { return m.Name == self })
	if own < 0 || current == nil || !slices.Contains(current.Controllers.Members, documents.Member{Name: self, Term: live[own].Term}) {
		return Leadership{}
	}
	l := Leadership{Term: current.Revisions[documents.ControllersKey]}
	for _, member := range current.Controllers.Members {
		l.Names = append(l.Names, member.Name)
	}
	return l
}

// listOf returns the list of those that live, as the store has it.
func listOf(live []store.Member) (list documents.Controllers) {
	for _, m := range live {
		list.Members = append(list.Members, documents.Member{Name: m.Name, Term: m.Term})
	}
	return list
}

// agreed reports whether the list in the store is that of those that live.
func agreed(live []store.Member, current *documents.Snapshot) bool {
	return current != nil && slices.Equal(listOf(live).Members, current.Controllers.Members)
}
