package engine

import (
	"iter"

	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
)

// View is the desired state as nodes are sent it. It is shared: nobody changes it.
type View struct {
	Revision uint64
	Keys     model.Keys
	Tickets  rotation.TicketKeys // of session tickets: for agents alone
	Services []ServiceView       // by name
	// Nodes are the load balancers with a tier, and how those of the second are checked.
	Nodes      []model.Node
	NodeHealth model.Health
	Unserved   model.Unserved
	// Second is the second tier, which is checked and judged like the servers of a service (model.Fleet.SecondTier); nil: there is none.
	Second *ServiceView
	// Skipped are services that peers have to be sent even if they are what they were in the view before, or there in neither: they
	// were something else in between, which another controller may have sent. Whole: peers have to be sent everything.
	Skipped []string
	Whole   bool
}

// ServiceView is a service with what is not configuration.
type ServiceView struct {
	Service model.Service
	Removed []model.Server  // that have left, whose connections have not ended
	Past    [][]model.Share // what the table was made of before, oldest first
	Down    []uint16        // ids of servers that get no new connections because they are unhealthy, ascending
	Kept    []uint16        // ids of servers that are unhealthy and get new connections all the same (all_down), ascending
	Cut     []uint16        // of Down, the ones that have been unhealthy for so long that they get no packets at all
	// Revision changes whenever anything else here does. 0: compare.
	Revision uint64
}

// Service returns the service of that name, or nil.
func (v *View) Service(name string) *ServiceView {
	for i := range v.Services {
		if v.Services[i].Service.Name == name {
			return &v.Services[i]
		}
	}
	return nil
}

// CompareAll has everything looked at, whatever its revision is.
func (v *View) CompareAll() {
	for service := range v.judged() {
		service.Revision = 0
	}
}

// judged are the services, and what is checked like one.
func (v *View) judged() iter.Seq[*ServiceView] {
	return func(yield func(*ServiceView) bool) {
		for i := range v.Services {
			if !yield(&v.Services[i]) {
				return
			}
		}
		if v.Second != nil {
			yield(v.Second)
		}
	}
}

// tiers are those of load balancers, by name, where there are two.
func (v *View) tiers() map[string]model.Tier {
	tiers := map[string]model.Tier{}
	if v.Second != nil {
		for _, node := range v.Nodes {
			tiers[node.Name] = node.Tier
		}
	}
	return tiers
}
