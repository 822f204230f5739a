// What a change does to connections that live.

package fleet

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Connections are those of one server.
type Connections struct {
	Live  uint64
	Known bool // somebody can tell
	Exact bool // an agent has counted them, else load balancers have estimated them
}

// OfRemoved stands for the id of a server: all those that were removed from the service, whose connections may live. No server has this id.
const OfRemoved = 0

// livingOf tells the connections of a server, or of those removed.
type livingOf func(service string, id uint16) Connections

// And are the connections of both.
func (c Connections) And(o Connections) Connections {
	return Connections{Live: c.Live + o.Live, Known: c.Known && o.Known, Exact: c.Exact && o.Exact}
}

// connectionsOf are those of all servers of a service, with those that were removed.
func connectionsOf(s *model.Service, living livingOf) Connections {
	all := living(s.Name, OfRemoved)
	for i := range s.Servers {
		all = all.And(living(s.Name, s.Servers[i].ID))
	}
	return all
}

// String is "12 connections", "about 12 connections" or "connections that nobody counts".
func (c Connections) String() string {
	switch text := model.Counted(c.Live, "connection", "connections"); {
	case !c.Known:
		return "connections that nobody counts"
	case !c.Exact:
		return "about " + text
	default:
		return text
	}
}

// Living tells what becomes of the connections that live when a fleet changes from a to b, one line for each server that leaves, drains or is
// switched off, and for each service that goes or endangers what it has. nil: they all stay as they are. Both have their defaults.
func Living(a, b *model.Fleet, living livingOf) (lines []string) {
	after, ports := index(b.Services, serviceName), portsOf(b)
	for i := range a.Services {
		from := &a.Services[i]
		to := after[from.Name]
		all := connectionsOf(from, living)
		switch {
		case len(from.Servers) == 0:
		case to == nil && len(goneOf(from, nil, ports)) > 0:
			lines = append(lines, fmt.Sprintf("service %s: %s end", from.Name, all))
		case to != nil && endangered(from, to, living):
			lines = append(lines, fmt.Sprintf("service %s: %s: see the warnings", from.Name, all))
		case to != nil:
			lines = append(lines, fatesOf(from, to, living)...)
		}
	}
	return lines
}

// Removals tells what a file takes away from a fleet that somebody may just have failed to write, one line each: services whose connections live,
// or may, and more than a third of the servers of a service that take new connections. nil: nothing. Servers in the place of others are no loss, nor
// are those that only drain or rest.
func Removals(a, b *model.Fleet, living livingOf) (lines []string) {
	after, ports := index(b.Services, serviceName), portsOf(b)
	for i := range a.Services {
		from := &a.Services[i]
		all := connectionsOf(from, living)
		to := after[from.Name]
		if to == nil {
			if len(from.Servers) > 0 && (all.Live > 0 || !all.Known) && len(goneOf(from, nil, ports)) > 0 {
				lines = append(lines, fmt.Sprintf("service %s goes, with %s", from.Name, all))
			}
			continue
		}
		before, left := len(serversTaking(from)), len(serversTaking(to))+resting(from, to)
		if gone := before - left; gone*mostGone > before {
			lines = append(lines, fmt.Sprintf("service %s: %d of its %s that take new connections go", from.Name, gone, model.Counted(before, "server", "servers")))
		}
	}
	return lines
}

// resting counts the servers that take new connections before a change and not after it, and are still listed: half a file has no such servers.
func resting(from, to *model.Service) (count int) {
	key := identity(from, to)
	after := index(to.Servers, key)
	for i := range from.Servers {
		if now := after[key(&from.Servers[i])]; now != nil && from.Servers[i].TakesNew() && !now.TakesNew() {
			count++
		}
	}
	return count
}

// Orphaned tells which connections lose the predecessor that has them when a fleet changes from a to b, one line for each service. nil: none does.
// Of several addresses of one predecessor each finds the others' connections. to counts what went on to that of a service lately.
func Orphaned(a, b *model.Fleet, to func(service string) Connections) (lines []string) {
	if !slices.ContainsFunc(a.Services, func(s model.Service) bool { return s.Predecessor.Exists() }) {
		return nil
	}
	after := index(b.Services, serviceName)
	succeeded := map[string]map[netip.Addr]bool{} // by service of a: the predecessors of those that take its connections over
	for name, earlier := range Earlier(a, b) {
		for _, from := range earlier {
			if succeeded[from.Name] == nil {
				succeeded[from.Name] = map[netip.Addr]bool{}
			}
			for _, address := range after[name].Predecessor.Addresses {
				succeeded[from.Name][address] = true
			}
		}
	}
	for i := range a.Services {
		from := &a.Services[i]
		if !from.Predecessor.Exists() || slices.ContainsFunc(from.Predecessor.Addresses, func(one netip.Addr) bool { return succeeded[from.Name][one] }) {
			continue
		}
		if had := to(from.Name); had.Live > 0 || !had.Known {
			lines = append(lines, fmt.Sprintf("service %s: its predecessor goes, and %s of the last minute with it", from.Name, had))
		}
	}
	return lines
}

// endangered reports whether a change of a service, whatever becomes of its servers, is among Dangers.
func endangered(from, to *model.Service, living livingOf) bool {
	staying := *to
	staying.Servers = from.Servers
	return len(serviceDangers(from, &staying, nil, nil, living)) > 0
}

func fatesOf(from, to *model.Service, living livingOf) (lines []string) {
	key := identity(from, to)
	after := index(to.Servers, key)
	for i := range from.Servers {
		before := &from.Servers[i]
		now, fate := after[key(before)], "stay until they end"
		moved := now != nil && place(now) != place(before) && now.State != model.StateOff
		if !to.Affinity.KeepsIDs() && to.Affinity != model.AffinityHistory {
			fate = fmt.Sprintf("may break: affinity %s keeps none where it was", to.Affinity)
		}
		switch {
		case before.State == model.StateOff:
			continue
		case moved:
			fate = fmt.Sprintf("break: %s is another machine", place(now))
		case now == nil:
		case now.State == model.StateOff:
			fate = "are cut"
		case now.State != model.StateDraining || before.State == model.StateDraining && before.Deadline.Equal(now.Deadline):
			continue
		case !now.Deadline.IsZero():
			fate += fmt.Sprintf("; at %s the rest is cut", now.Deadline.Format(time.RFC3339))
		}
		lines = append(lines, fmt.Sprintf("service %s: server %s: %s %s", from.Name, before.Name, living(from.Name, before.ID), fate))
	}
	return lines
}
