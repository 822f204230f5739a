// The fleet in a snapshot, and what makes another of it.
package documents

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store"
)

// Node returns the desired state for somebody who wants to change it. Services are shared with the snapshot.
func (s *Snapshot) Node() *fleet.Desired {
	n := &fleet.Desired{Running: s.Fleet(), Past: map[string][][]model.Share{}}
	overridden := model.Fleet{Nodes: s.Nodes.File}
	for i := range n.Running.Services {
		running := &n.Running.Services[i]
		d := s.Services[running.Name]
		n.Removed = append(n.Removed, d.Removed...)
		if d.Past != nil {
			n.Past[running.Name] = d.Past
		}
		if d.File != nil {
			overridden.Services = append(
				overridden.Services,
				model.Service{Name: running.Name, Affinity: running.Affinity, Servers: d.File},
			)
		}
	}
	n.Recall(overridden)
	return n
}

// Fleet returns what is wanted, services by name.
func (s *Snapshot) Fleet() model.Fleet {
	f := model.Fleet{
		Keys:       s.Keys,
		Services:   make([]model.Service, 0, len(s.Services)),
		Nodes:      s.Nodes.Nodes,
		NodeHealth: s.Nodes.Health,
		Replicas:   s.Nodes.Replicas,
		Unserved:   s.Nodes.Unserved,
	}
	for _, name := range slices.Sorted(maps.Keys(s.Services)) {
		f.Services = append(f.Services, s.Services[name].Service)
	}
	return f
}

// View returns the desired state as nodes are told it.
func (s *Snapshot) View() *engine.View {
	v := &engine.View{
		Revision:   s.Revision,
		Keys:       s.Keys,
		Tickets:    s.Tickets,
		Services:   make([]engine.ServiceView, 0, len(s.Services)),
		Nodes:      s.Nodes.Nodes,
		NodeHealth: s.Nodes.Health,
		Unserved:   s.Nodes.Unserved,
	}
	if second := s.secondTier(); second != nil {
		v.Second = &engine.ServiceView{Service: *second, Revision: s.ChangedAt[model.SecondTierName]}
		if h := s.Health[model.SecondTierName]; h != nil {
			v.Second.Down, v.Second.Kept, v.Second.Cut = h.Down, h.Kept, h.Cut
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Services)) {
		d := s.Services[name]
		one := engine.ServiceView{Service: d.Service, Past: d.Past, Revision: s.ChangedAt[name]}
		for i := range d.Removed {
			if !d.Removed[i].Forgotten {
				one.Removed = append(one.Removed, d.Removed[i].Server)
			}
		}
		if h := s.Health[name]; h != nil {
			one.Down, one.Kept, one.Cut = h.Down, h.Kept, h.Cut
		}
		v.Services = append(v.Services, one)
	}
	return v
}

// Changes returns the documents that make n of what the snapshot has.
func (s *Snapshot) Changes(n *fleet.Desired) (documents []store.Document, err error) {
	put := func(key string, value any) {
		document, failed := s.Put(key, value)
		if failed != nil {
			err = fmt.Errorf("write document %s: %w", key, failed)
		}
		documents = append(documents, document)
	}
	if !reflect.DeepEqual(n.Running.Keys, s.Keys) {
		put(KeysKey, writeKeys(&n.Running.Keys))
	}
	overridden, files := n.Overridden(), map[string][]model.Server{}
	for i := range overridden.Services {
		files[overridden.Services[i].Name] = overridden.Services[i].Servers
	}
	nodes := Nodes{n.Running.Nodes, n.Running.NodeHealth, overridden.Nodes, n.Running.Replicas, n.Running.Unserved}
	if !reflect.DeepEqual(nodes, s.Nodes) {
		put(NodesKey, nodes)
	}
	if key := HealthPrefix + model.SecondTierName; !n.Running.HasSecondTier() && s.Revisions[key] != 0 {
		documents = append(documents, s.Delete(key))
	}
	removed := map[string][]fleet.Removed{}
	for _, r := range n.Removed {
		removed[r.Service] = append(removed[r.Service], r)
	}
	here := map[string]bool{}
	for i := range n.Running.Services {
		here[n.Running.Services[i].Name] = true
	}
	gone := map[netip.Addr]map[string]bool{} // services that are no more, by VIP: it is free before another one takes it
	for name, service := range s.Services {
		for _, vip := range service.Service.VIPs() {
			if here[name] {
				break
			}
			if gone[vip] == nil {
				gone[vip] = map[string]bool{}
			}
			gone[vip][name] = true
		}
	}
	remove := func(names map[string]bool) {
		for _, name := range slices.Sorted(maps.Keys(names)) {
			documents = append(documents, s.Delete(ServicesPrefix+name))
			if key := HealthPrefix + name; s.Revisions[key] != 0 {
				documents = append(documents, s.Delete(key))
			}
			for _, vip := range s.Services[name].Service.VIPs() {
				delete(gone[vip], name)
			}
		}
	}
	for i := range n.Running.Services {
		service := &n.Running.Services[i]
		next := &Service{*service, removed[service.Name], n.Past[service.Name], files[service.Name]}
		if before := s.Services[service.Name]; before == nil || !before.same(next) {
			for _, vip := range service.VIPs() {
				remove(gone[vip])
			}
			if before != nil {
				known := cmp.Or(s.Health[service.Name], &fleet.Unhealthy{})
				if health := known.WithAdded(&before.Service, service); len(health.Down) != len(known.Down) {
					put(HealthPrefix+service.Name, health) // first
				}
			}
			put(ServicesPrefix+service.Name, next)
		}
	}
	for _, vip := range slices.SortedFunc(maps.Keys(gone), netip.Addr.Compare) {
		remove(gone[vip])
	}
	return documents, err
}

// same compares what is written. Lists are compared apart: they are long, and reflection is slow.
func (d *Service) same(other *Service) bool {
	a, b := d.Service, other.Service
	sameServer := func(a, b model.Server) bool {
		equal := a.Deadline.Equal(b.Deadline)
		a.Deadline, b.Deadline = time.Time{}, time.Time{}
		return equal && a == b
	}
	servers := slices.EqualFunc(a.Servers, b.Servers, sameServer) && slices.EqualFunc(d.File, other.File, sameServer)
	removed := slices.EqualFunc(d.Removed, other.Removed, func(a, b fleet.Removed) bool {
		return a.Server.ID == b.Server.ID && a.Server.Name == b.Server.Name && a.Since.Equal(b.Since) &&
			a.LastSeen.Equal(b.LastSeen) &&
			a.Forgotten == b.Forgotten
	})
	past := slices.EqualFunc(d.Past, other.Past, slices.Equal)
	a.Servers, b.Servers = nil, nil
	return servers && removed && past && reflect.DeepEqual(a, b)
}
